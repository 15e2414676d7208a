"""`arch-search blocks`: the registry, and each block's options with their equations."""

import json
from dataclasses import fields
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from arch_search.errors import UsageError


def blocks(
    kind: Annotated[str | None, typer.Argument(metavar="[BLOCK]", help="One block.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The blocks that a layer pattern can name; with a name, that block's options."""
    rows = _registry() if kind is None else _options(kind)
    if as_json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in rows[0]:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table, highlight=False)


def _registry() -> list[dict[str, Any]]:
    from blocks.registry import SHORT_NAMES, block_class, registered  # imports torch

    short = {kind: name for name, kind in SHORT_NAMES.items()}
    return [
        {
            "block": kind,
            "short": short.get(kind, ""),
            "what it is": block_class(kind).summary,
            "options": len(fields(block_class(kind).Options)),
        }
        for kind in sorted(registered())
    ]


def _options(kind: str) -> list[dict[str, Any]]:
    from blocks.registry import block_class

    try:
        cls = block_class(kind)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return [
        {
            "option": field.name,
            "type": str(field.type).replace("typing.", ""),
            "default": field.default,
            "what it does": field.metadata.get("help", ""),
        }
        for field in fields(cls.Options)
    ]
