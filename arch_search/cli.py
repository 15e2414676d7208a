"""The command line. Exit code 0: done; 1: something ran and failed; 2: the input is wrong."""

import os
import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer

from arch_search.commands import register
from arch_search.errors import UsageError
from arch_search.storage import ROOT_VARIABLE

app = typer.Typer(
    name="arch-search",
    help="Controlled ablations and searches over sequence-model architectures.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _options(
    root: Annotated[
        str | None,
        typer.Option("--root", help=f"Storage root; also by {ROOT_VARIABLE}. [~/.arch-search]"),
    ] = None,
) -> None:
    """Options before the command."""
    if root is not None:
        os.environ[ROOT_VARIABLE] = root


def make_app() -> typer.Typer:
    """The app with our own commands, then those registered by entry point."""
    register(app)
    for entry in sorted(entry_points(group="arch_search.commands"), key=lambda e: e.name):
        app.command(entry.name)(entry.load())
    return app


def main() -> None:
    """Run the command line."""
    try:
        make_app()()
    except UsageError as error:
        print(f"arch-search: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
