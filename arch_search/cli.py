"""The command line. Exit code 0: done; 1: something ran and failed; 2: the input is wrong."""

import os
import sys
from collections.abc import Collection
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated

import typer

from arch_search.commands import COMMANDS
from arch_search.errors import UsageError
from arch_search.redaction import hide_secrets
from arch_search.storage import ROOT_VARIABLE

GROUP = "arch_search.commands"


def _options(
    root: Annotated[
        str | None,
        typer.Option("--root", help=f"Storage root; also by {ROOT_VARIABLE}. [~/.arch-search]"),
    ] = None,
) -> None:
    """Controlled ablations and searches over sequence-model architectures."""
    if root is not None:
        os.environ[ROOT_VARIABLE] = root


def make_app(words: Collection[str] = ()) -> typer.Typer:
    """The app with the commands that `words` name, or with all of them if it names none.

    Ours come first, then those registered by entry point. Loading only what is asked for keeps
    `status` from importing statistics and plots.
    """
    app = typer.Typer(
        name="arch-search",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_options)
    ours = [EntryPoint(name, path, GROUP) for name, path in COMMANDS.items()]
    others = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    every = [*ours, *others]
    for entry in [entry for entry in every if entry.name in words] or every:
        command = entry.load()
        if isinstance(command, typer.Typer):  # a group, as in `data list`
            app.add_typer(command, name=entry.name)
        else:
            app.command(entry.name)(command)
    return app


def main() -> None:
    """Run the command line."""
    try:
        make_app(sys.argv[1:])(prog_name="arch-search")
    except UsageError as error:
        print(f"arch-search: {hide_secrets(str(error))}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
