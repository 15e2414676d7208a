"""`arch-search results`: one row a run, as a table, JSON, CSV or Parquet."""

import json
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from rich.table import Table

from arch_search.commands.names import NameArgument
from arch_search.commands.screen import screen
from arch_search.errors import UsageError
from arch_search.records import curves, read_experiment
from arch_search.records import results as read_results
from arch_search.storage import Root

SHOWN = ("arm", "seed", "state", "steps", "seconds")  # and the metric that decides


def results(
    name: NameArgument,
    curve: Annotated[
        bool, typer.Option("--curves", help="What was logged while training: a row a value.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, a list of rows.")] = False,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", help="Write every column to this file.")
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="The same as CSV.")] = None,
) -> None:
    """Every run of an experiment, a row each.

    How it ended and what it measured; files and --json have every column, factors and counts too.
    """
    root = Root()
    frame = curves(read_experiment(name, root)) if curve else read_results(name, root)
    for path, write in ((parquet, _write_parquet), (csv, _write_csv)):
        if path is not None:
            write(frame, path)
    if as_json:
        print(json.dumps(json.loads(frame.to_json(orient="records") or "[]"), indent=1))
    elif parquet is None and csv is None:
        metric = root.experiment(name).plan().primary.metric
        columns = list(frame.columns) if curve else [c for c in (*SHOWN, metric) if c in frame]
        screen().print(_table(frame, columns))


def _table(frame: pd.DataFrame, columns: list[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in frame[columns].itertuples(index=False):
        table.add_row(*(_cell(value) for value in row))
    return table


def _cell(value: object) -> str:
    if value is None or value != value:  # NaN: not measured
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _write_parquet(frame: pd.DataFrame, path: Path) -> None:
    # A factor may have numbers in one arm and words in another: a column of Parquet has one type.
    mixed = [c for c in frame.columns if len({type(v) for v in frame[c].tolist()}) > 1]
    try:
        frame.assign(**{c: frame[c].map(_as_text) for c in mixed}).to_parquet(path, index=False)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None


def _write_csv(frame: pd.DataFrame, path: Path) -> None:
    try:
        frame.to_csv(path, index=False)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None


def _as_text(value: object) -> str | None:
    return None if value is None or value != value else str(value)
