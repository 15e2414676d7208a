"""Cells of a design and the matrices that describe them. Free of torch.

A cell gives each factor a level. Factors may be nested: a cell need not have all of them, and a
comparison uses only those that its cells share.
"""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Cell = Mapping[str, Any]


def key(level: Any) -> str:
    """A level as text that is equal for equal levels, whether list or tuple."""
    return level if isinstance(level, str) else json.dumps(level)


def levels_of(cells: Iterable[Cell], factor: str) -> list[Any]:
    """The factor's levels: numbers ascending, others in the order in which they come."""
    seen = {key(cell[factor]): cell[factor] for cell in cells if factor in cell}
    levels = list(seen.values())
    return sorted(levels) if all(is_number(level) for level in levels) else levels


def is_number(level: Any) -> bool:
    return isinstance(level, int | float) and not isinstance(level, bool)


def is_within(cell: Cell, levels: Mapping[str, Any]) -> bool:
    """Whether a cell is at these levels: of each factor one, or one of a list."""
    for factor, wanted in levels.items():
        own = {key(cell[factor])} if factor in cell else set[str]()
        several = map(key, wanted) if isinstance(wanted, list) else ()
        if not own & {key(wanted), *several}:
            return False
    return True


def levels_said(levels: Mapping[str, Any]) -> str:
    """'m2rnn, count 1 or 2'; the factor `with` needs no word of its own."""
    parts = []
    for factor, level in levels.items():
        several = level if isinstance(level, list) else [level]
        text = " or ".join(map(key, several))
        parts.append(text if factor == "with" else f"{factor} {text}")
    return ", ".join(parts)


def shared_factors(cells: Sequence[Cell]) -> list[str]:
    """Factors that every cell has and that differ among them."""
    if not cells:
        return []
    common = [name for name in cells[0] if all(name in cell for cell in cells)]
    return [name for name in common if len(levels_of(cells, name)) > 1]


def model_row(
    weights: Mapping[str, Array], factors: Sequence[str], interactions: Sequence[tuple[str, str]]
) -> Array:
    """A row of the additive model: 1, each factor's levels, and products for interactions.

    Args:
        weights: for each factor a share on each of its levels; one level alone for a cell.
    """
    parts = [np.ones(1), *(weights[name] for name in factors)]
    parts += [np.outer(weights[a], weights[b]).ravel() for a, b in interactions]
    return np.concatenate(parts)


def one_level(cells: Sequence[Cell], factor: str, level: Any) -> Array:
    """The share 1 on one level of a factor."""
    return np.array([float(key(level) == key(other)) for other in levels_of(cells, factor)])


def model_matrix(
    cells: Sequence[Cell],
    factors: Sequence[str],
    interactions: Sequence[tuple[str, str]] = (),
    among: Sequence[Cell] | None = None,
) -> Array:
    """One row a cell; over-complete, so look at its rank. Levels are those of `among`."""
    among = cells if among is None else among
    rows = [
        model_row({f: one_level(among, f, cell[f]) for f in factors}, factors, interactions)
        for cell in cells
    ]
    return np.array(rows)


def rank(matrix: Array) -> int:
    return int(np.linalg.matrix_rank(matrix)) if matrix.size else 0


def is_estimable(cells: Sequence[Cell], factor: str, others: Sequence[str]) -> bool:
    """Whether a factor's effects stand apart from those of others, all adding up."""
    without = rank(model_matrix(cells, others))
    together = rank(model_matrix(cells, [*others, factor]))
    return together - without == len(levels_of(cells, factor)) - 1


def missing_cells(cells: Sequence[Cell], one: str, other: str) -> list[dict[str, Any]]:
    """Combinations of two factors' levels that no cell has."""
    there = {(key(cell[one]), key(cell[other])) for cell in cells}
    return [
        {one: a, other: b}
        for a, b in itertools.product(levels_of(cells, one), levels_of(cells, other))
        if (key(a), key(b)) not in there
    ]


def separating_cells(cells: Sequence[Cell], one: str, other: str) -> list[dict[str, Any]]:
    """The fewest combinations, added one by one, after which two factors no longer move together.

    Empty if they are apart already, or if no combination of their levels would help.
    """
    have = [{one: cell[one], other: cell[other]} for cell in cells]
    added: list[dict[str, Any]] = []
    for extra in missing_cells(cells, one, other):
        if is_estimable([*have, *added], one, [other]):
            break
        before = rank(model_matrix([*have, *added], [one, other], among=have))
        if rank(model_matrix([*have, *added, extra], [one, other], among=have)) > before:
            added.append(extra)
    return added
