"""`arch-search mad`: MAD's score of each architecture over experiments on its six tasks."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from arch_search.commands.names import experiment_names
from arch_search.commands.screen import screen
from arch_search.mad import TASKS, MadTable, mad_table
from arch_search.records import read_experiment
from arch_search.storage import Root

SHORT = ("recall", "noisy", "fuzzy", "copy", "compress", "memory")  # of TASKS


def mad(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME…", help="Experiments on MAD's tasks.", autocompletion=experiment_names
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The mean over settings of the best of each sweep, by task, and over MAD's six tasks."""
    found = mad_table(read_experiment(name, Root()) for name in names)
    if as_json:
        print(json.dumps(asdict(found), indent=1))
        return
    screen().print(_table(found))
    for setting in found.left_out:
        screen().print(f"not counted, as not every architecture has it: {setting}", markup=False)


def _table(found: MadTable) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("architecture", "layers", *SHORT, "MAD", "runs"):
        table.add_column(column, overflow="fold")
    for row in found.rows:
        cells = [f"{row.scores[task]:.3f}" if task in row.scores else "–" for task in TASKS]
        whole = "–" if row.mad is None else f"{row.mad:.3f}"
        table.add_row(row.architecture, row.layout, *cells, whole, str(row.runs))
    return table
