"""`arch-search doctor`: what this machine can run, and what is missing, in one screen."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from arch_search.storage import Root

MARKS = {"ok": "[green]ok[/green]", "missing": "[yellow]–[/yellow]", "bad": "[red]bad[/red]"}
GAP = 2  # spaces between columns
LEAST_PATH = 16  # characters; less of a path tells nothing


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    tracking: Annotated[
        str, typer.Option("--tracking", help="An MLflow to reach; the root's own if not given.")
    ] = "",
) -> None:
    """What this machine can run. Exit code 1 if something that every run needs is missing."""
    from arch_search.diagnosis import diagnose  # imports torch

    found = diagnose(Root(), tracking)
    if as_json:
        print(json.dumps([asdict(one) for one in found], indent=1))
    else:
        console = Console()
        table = Table(box=None, padding=(0, GAP, 0, 0), show_header=False)
        for column in ("what", "state", "found"):
            table.add_column(column, overflow="fold")
        room = console.width - max(len(one.what) for one in found) - len("bad") - 3 * GAP
        for one in found:
            advice = f" [dim]{escape(one.advice)}[/dim]" if one.advice else ""
            words = one.found if one.state == "bad" else _shortened(one.found, room)
            table.add_row(one.what, MARKS[one.state], escape(words) + advice)
        console.print(table, highlight=False)
    if any(one.state == "bad" for one in found):
        raise typer.Exit(1)


def _shortened(words: str, room: int) -> str:
    """A path that makes its line too long loses its middle; --json has it all."""
    path = max(words.split(), key=len, default="")
    left = room - (len(words) - len(path))
    if left >= len(path) or left < LEAST_PATH or "/" not in path:
        return words
    end = left // 2
    return words.replace(path, f"{path[: left - end - 1]}…{path[-end:]}")
