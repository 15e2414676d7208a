"""Cells of a design as people write them: one level on each axis, checked and filled in."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from arch_search.errors import UsageError
from arch_search.experiment import nearest
from arch_search.factors import Cell, key, levels_of, levels_said

PLACES = ("count", "position", "at")


def full_factorial(levels: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [
        dict(zip(levels, values, strict=True)) for values in itertools.product(*levels.values())
    ]


def listed_cell(cell: Mapping[str, Any], levels: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """A listed cell, with axes of a single level filled in."""
    known = {"with", *PLACES, *(axis for axis in levels if levels[axis])}
    for axis in cell:
        if axis not in known:
            raise UsageError(f"arms.cells: unknown axis {axis!r}; {nearest(axis, sorted(known))}")
    _check_cell("arms.cells", cell)
    only = {axis: values[0] for axis, values in levels.items() if len(values) == 1}
    filled = {axis: value for axis, value in {**only, **cell}.items() if axis in known}
    if isinstance(filled.get("position"), list):
        filled["position"] = tuple(filled["position"])
    if isinstance(filled.get("at"), list):
        filled["at"] = tuple(filled["at"])
    for axis, values in levels.items():
        if values and axis not in filled:
            raise UsageError(f"arms.cells: {dict(cell)} names no level of {axis!r}")
    return {axis: filled[axis] for axis in levels if axis in filled}


def control_cell(
    name: str, cell: Mapping[str, Any], levels: Mapping[str, Sequence[Any]]
) -> dict[str, Any]:
    """A control may leave the factors' levels; what it does not name is the first level.

    A block that is none of `with` may lack the varied options: of those it has what it names.
    """
    first = {axis: values[0] for axis, values in levels.items() if values}
    if cell.get("with", first["with"]) not in levels["with"]:
        first = {axis: level for axis, level in first.items() if axis in ("with", *PLACES)}
    if "at" in cell:
        first = {axis: level for axis, level in first.items() if axis not in PLACES}
    filled = {**first, **cell}
    _check_cell(f"arms.controls.{name}", cell)
    if not {"at", "count"} & filled.keys():
        raise UsageError(f"arms.controls.{name}: say where, by 'at' or by 'count' and 'position'")
    for place in ("position", "at"):
        if isinstance(filled.get(place), list):
            filled[place] = tuple(filled[place])
    return filled


def cells_within(
    where: str, levels: Mapping[str, Any], cells: Sequence[tuple[Cell, str]]
) -> list[tuple[Cell, str]]:
    """The cells at these levels, each with its arm; of each factor one level, or one of a list.

    Raises:
        UsageError: a factor or level that no cell has; begins with `where`, a key of the file.
    """
    narrowed: dict[str, Any] = {}
    for factor, wanted in levels.items():
        known = sorted({name for cell, _ in cells for name in cell})
        if factor not in known:
            raise UsageError(f"{where}: no factor is called {factor!r}; {nearest(factor, known)}")
        there = {key(level) for level in levels_of([c for c, _ in cells], factor)}
        accepted = {key(level) for level in _accepted(wanted, there)}
        if unknown := sorted(accepted - there):
            hint = nearest(unknown[0], sorted(there))
            if (factor, unknown[0]) == ("arm", "baseline"):
                hint = "write it without 'arm', as in minus: baseline"
            among = f" among {levels_said(narrowed)}" if narrowed else ""
            raise UsageError(f"{where}: {factor} has no level {unknown[0]}{among}; {hint}")
        cells = [(c, name) for c, name in cells if factor in c and key(c[factor]) in accepted]
        narrowed[factor] = wanted
    if not cells:
        raise UsageError(f"{where}: no arm is at all these levels: {dict(levels)}")
    return list(cells)


def _accepted(wanted: Any, levels: set[str]) -> list[Any]:
    """One level, or a list of levels; a level may itself be a list, as a list of layers is."""
    return list(wanted) if isinstance(wanted, list) and key(wanted) not in levels else [wanted]


def _check_cell(where: str, cell: Mapping[str, Any]) -> None:
    """Raise UsageError if the level of an axis is of another kind than that axis has."""
    for axis, level in cell.items():
        match axis:
            case "with":
                fits, expected = isinstance(level, str), "the name of a block"
            case "count":
                fits, expected = type(level) is int, "a whole number"
            case "position" | "at":
                layers = isinstance(level, list) and all(type(layer) is int for layer in level)
                fits = layers or (axis == "position" and isinstance(level, str))
                expected = "a list of layers" + ", or a ranking's name" * (axis == "position")
            case _:
                fits, expected = True, ""
        if not fits:
            raise UsageError(f"{where}: {axis} is {level!r}; expected {expected}")
