"""What the registry offers, in words: rows for `arch-search blocks`, and docs/blocks.md.

python -m blocks.describe > docs/blocks.md
"""

import dataclasses
import types
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from blocks.options import option_types
from blocks.registry import SHORT_NAMES, block_class, registered, resolve_options

SHOWN_WIDTHS = (64, 1024)


@dataclass(frozen=True, kw_only=True, slots=True)
class OptionRow:
    """One option: what it takes, its default, and its help text with the equation."""

    name: str
    takes: str
    default: str
    help: str


def describe(kind: str) -> list[OptionRow]:
    """The options of a block, in their order.

    Raises:
        ValueError: no such block; names the nearest.
    """
    cls = block_class(kind).Options
    types_ = option_types(cls)
    derived = [dataclasses.asdict(resolve_options(kind, {}, width=width)) for width in SHOWN_WIDTHS]
    rows = []
    for field in dataclasses.fields(cls):
        default = _show(field.default)
        if field.default is None and derived[0][field.name] is not None:
            default = ", ".join(
                f"{_show(d[field.name])} at width {w}"
                for w, d in zip(SHOWN_WIDTHS, derived, strict=True)
            )
        rows.append(
            OptionRow(
                name=field.name,
                takes=_takes(types_[field.name]),
                default=default,
                help=field.metadata.get("help", ""),
            )
        )
    return rows


def equation(kind: str) -> str:
    """The first paragraph of the block's docstring: its equation."""
    return " ".join((block_class(kind).__doc__ or "").strip().split("\n\n")[0].split())


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(_show(v) for v in value)}]"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _takes(hint: Any) -> str:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_takes(arg) for arg in args if arg is not type(None))
    if origin is Literal:
        return ", ".join(map(str, args))
    if origin is tuple:
        return f"[{', '.join(_takes(arg) for arg in args)}]"
    names: dict[type, str] = {int: "integer", float: "number", bool: "true, false"}
    return names.get(hint) or str(hint.__name__)


def markdown() -> str:
    """docs/blocks.md: every registered block with its equation, sizes and options."""
    short = {kind: name for name, kind in SHORT_NAMES.items()}
    parts = [
        "# Blocks",
        "Made by `python -m blocks.describe > docs/blocks.md`; a test keeps it up to date. "
        "Names in brackets are short forms for patterns.",
    ]
    for kind in sorted(registered()):
        name = f"{kind} ({short[kind]})" if kind in short else kind
        parts += [f"## {name}", f"{block_class(kind).summary}.", f"`{equation(kind)}`"]
        table = ["| option | takes | default | what it does |", "|---|---|---|---|"]
        for row in describe(kind):
            cells = (f"`{row.name}`", row.takes, row.default, row.help)
            table.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        parts.append("\n".join(table))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
