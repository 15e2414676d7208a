"""The experiment's name as an argument, with completion in the shell."""

from typing import Annotated

import typer

from arch_search.errors import UsageError
from arch_search.storage import Root


def experiment_names(begun: str) -> list[str]:
    """The experiments under the root whose names begin so: what the shell offers."""
    try:
        return [f.name for f in Root().experiments() if f.name.startswith(begun)]
    except (UsageError, OSError):
        return []


NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The experiment's name.", autocompletion=experiment_names),
]
