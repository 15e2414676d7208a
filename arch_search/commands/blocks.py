"""`arch-search blocks`: the registry, and each block's options with their equations."""

import json
from dataclasses import fields
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from arch_search.errors import UsageError


def blocks(
    kind: Annotated[str | None, typer.Argument(metavar="[BLOCK]", help="One block.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The blocks that a layer pattern can name, and their options.

    With a name, that block's options, each with its default and what it does.
    """
    rows = _registry() if kind is None else _options(kind)
    if as_json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    console = Console()
    if kind is None:
        shown = [{**row, "kernels": ", ".join(row["kernels"])} for row in rows]
        console.print(_table(shown), highlight=False)
        return
    console.print(_heading(kind), highlight=False, markup=False)
    console.print(_table(rows), highlight=False)
    if backends := _backends(kind):
        console.print()
        console.print(_table(backends), highlight=False)


def _table(rows: list[dict[str, Any]]) -> Table:
    """A column for each key, the long texts in the wide ones."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in rows[0]:
        wide = column in ("what it does", "for")
        table.add_column(column, overflow="fold", ratio=3 if wide else None)
    for row in rows:
        table.add_row(*(escape(str(value)) for value in row.values()))
    return table


def _registry() -> list[dict[str, Any]]:
    from blocks.registry import SHORT_NAMES, block_class, registered  # imports torch

    short = {kind: name for name, kind in SHORT_NAMES.items()}
    return [
        {
            "block": kind,
            "short": short.get(kind, ""),
            "what it is": block_class(kind).summary,
            "options": len(fields(block_class(kind).Options)),
            "kernels": {name: _rows(name) for name in block_class(kind).kernels},
        }
        for kind in sorted(registered())
    ]


def _options(kind: str) -> list[dict[str, Any]]:
    from blocks.describe import describe

    try:
        rows = describe(kind)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return [
        {"option": row.name, "takes": row.takes, "default": row.default, "what it does": row.help}
        for row in rows
    ]


def _rows(kernel: str) -> list[dict[str, str]]:
    """What runs a kernel, where, and for which cases."""
    from kernels.coverage import coverage

    return [
        {"kernel": kernel, "backend": row.backend, "runs on": row.runs_on, "for": row.covers}
        for row in coverage(kernel)
    ]


def _backends(kind: str) -> list[dict[str, str]]:
    from blocks.registry import block_class

    return [row for name in block_class(kind).kernels for row in _rows(name)]


def _heading(kind: str) -> str:
    """What the block is, and its equation."""
    from blocks.describe import equation
    from blocks.registry import block_class

    return f"{block_class(kind).summary}\n{equation(kind)}\n"
