"""Contrasts declared in the file, resolved to weights over the arms before anything runs.

A contrast is a linear function of the cells' means in the additive model of the factors that its
cells share (with the interactions that the file asks about). Over all combinations these are the
plain averages; in a subset they rest on effects adding up, and the text says so. One that the arms
cannot tell from another factor is refused with the reason. Free of torch.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arch_search.cells import cells_within
from arch_search.chains import chain_contrasts
from arch_search.errors import UsageError
from arch_search.experiment import ContrastFile, nearest
from arch_search.factors import (
    Array,
    Cell,
    is_number,
    key,
    levels_of,
    levels_said,
    model_matrix,
    model_row,
    one_level,
    separating_cells,
    shared_factors,
)
from arch_search.plan_spec import ArmSpec, ContrastSpec

FORMS = ("levels", "linear", "interaction", "chain", "of")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Design:
    """Cells, the arm that each is, and what the model of them contains."""

    cells: tuple[Cell, ...]
    arms: tuple[str, ...]
    factors: tuple[str, ...]
    interactions: tuple[tuple[str, str], ...]

    def row(self, fixed: Mapping[str, Array]) -> Array:
        """The mean over an even grid of all factors but the fixed ones."""
        shares = {}
        for name in self.factors:
            count = len(levels_of(self.cells, name))
            shares[name] = fixed.get(name, np.full(count, 1 / count))
        return model_row(shares, self.factors, self.interactions)

    def at(self, factor: str, level: Any) -> Array:
        return one_level(self.cells, factor, level)


def declared_interactions(
    contrasts: Mapping[str, str | ContrastFile],
) -> tuple[tuple[str, str], ...]:
    """The pairs of factors whose interaction the file asks about."""
    given = (c.interaction for c in contrasts.values() if isinstance(c, ContrastFile))
    return tuple(pair for pair in given if pair is not None)


def declared_subsets(contrasts: Mapping[str, str | ContrastFile]) -> tuple[Mapping[str, Any], ...]:
    """The levels within which the file asks about effects, each once."""
    given = [c.within for c in contrasts.values() if isinstance(c, ContrastFile) and c.of is None]
    return tuple(within for i, within in enumerate(given) if within and within not in given[:i])


def resolve_contrasts(
    declared: Mapping[str, str | ContrastFile], arms: Sequence[ArmSpec]
) -> tuple[ContrastSpec, ...]:
    """Every declared contrast as weights over the arms; some declare several.

    Raises:
        UsageError: an unknown factor or level, or a contrast that these arms cannot estimate.
    """
    asked = declared_interactions(declared)
    return tuple(
        contrast
        for family, given in declared.items()
        for contrast in _resolve(family, given, arms, asked)
    )


def _resolve(
    family: str,
    given: str | ContrastFile,
    arms: Sequence[ArmSpec],
    asked: Sequence[tuple[str, str]],
) -> Iterator[ContrastSpec]:
    file = ContrastFile(levels=given) if isinstance(given, str) else given
    forms = [form for form in FORMS if getattr(file, form) is not None]
    if len(forms) != 1 or (file.minus is None) != (file.of is None):
        minus = ["minus"] if file.minus is not None else []
        raise UsageError(
            f"contrasts.{family}: give one of {', '.join(FORMS)} with minus; "
            f"got {', '.join([*forms, *minus]) or 'none'}"
        )
    if file.of is not None:
        yield _selections(family, file, arms)
        return
    if file.chain is not None:
        yield from chain_contrasts(family, file.chain, [arm.name for arm in arms])
        return
    design = _design(family, file.within, arms, asked)
    match forms[0]:
        case "levels":
            made = _levels(family, str(file.levels), design)
        case "linear":
            made = _linear(family, str(file.linear), design)
        case _:
            assert file.interaction is not None
            made = _interaction(family, file.interaction, design)
    within = _said(file.within)
    for name, text, row in made:
        weights = _weights(family, row, design)
        yield ContrastSpec(
            name=name, family=family, text=f"{text}{within}{_averaged(text, design)}",
            weights=weights,
        )  # fmt: skip


def _design(
    family: str,
    within: Mapping[str, Any],
    arms: Sequence[ArmSpec],
    asked: Sequence[tuple[str, str]],
) -> _Design:
    chosen = _chosen(family, within, arms)
    cells, names = tuple(cell for cell, _ in chosen), tuple(name for _, name in chosen)
    factors = tuple(shared_factors(cells))
    kept = tuple((a, b) for a, b in asked if a in factors and b in factors)
    return _Design(cells=cells, arms=names, factors=factors, interactions=kept)


def _chosen(
    family: str, within: Mapping[str, Any], arms: Sequence[ArmSpec]
) -> list[tuple[Cell, str]]:
    """The cells at these levels, each with its arm; one arm may be several equal cells."""
    cells: list[tuple[Cell, str]] = [
        (cell, arm.name)
        for arm in arms
        if not arm.is_baseline and not (arm.is_control and "control" not in within)
        for cell in (arm.factors, *arm.also)
    ]
    return cells_within(f"contrasts.{family}", within, cells)


def _levels(family: str, factor: str, design: _Design) -> Iterator[tuple[str, str, Array]]:
    levels = _levels_here(family, factor, design)
    for before, after in itertools.combinations(levels, 2):
        row = design.row({factor: design.at(factor, after) - design.at(factor, before)})
        row = row - design.row({factor: 0 * design.at(factor, after)})  # only the difference stays
        text = f"{key(after)} minus {key(before)}"
        yield (f"{family}: {key(after)} - {key(before)}" if len(levels) > 2 else family), text, row


def _linear(family: str, factor: str, design: _Design) -> Iterator[tuple[str, str, Array]]:
    levels = _levels_here(family, factor, design)
    if not all(is_number(level) for level in levels):
        raise UsageError(f"contrasts.{family}: {factor} has no numbers to draw a line through")
    zero = design.row({factor: np.zeros(len(levels))})
    yield family, f"slope for each 1 of {factor}", design.row({factor: _slope(levels)}) - zero


def _interaction(
    family: str, pair: tuple[str, str], design: _Design
) -> Iterator[tuple[str, str, Array]]:
    a, b = pair
    for (name_a, one), (name_b, other) in itertools.product(
        _effects(family, a, design), _effects(family, b, design)
    ):
        none_a, none_b = 0 * one, 0 * other
        row = design.row({a: one, b: other}) - design.row({a: none_a, b: other})
        row = row - design.row({a: one, b: none_b}) + design.row({a: none_a, b: none_b})
        text = f"how {a} ({name_a}) changes with {b} ({name_b})"
        yield f"{family}: {name_a} x {name_b}", text, row


def _effects(family: str, factor: str, design: _Design) -> list[tuple[str, Array]]:
    """A slope for numbers, else each level minus the first."""
    levels = _levels_here(family, factor, design)
    if all(is_number(level) for level in levels):
        return [(f"slope of {factor}", _slope(levels))]
    first = levels[0]
    return [
        (f"{key(level)} - {key(first)}", design.at(factor, level) - design.at(factor, first))
        for level in levels[1:]
    ]


def _slope(levels: Sequence[float]) -> Array:
    centred = np.array(levels, float) - np.mean(levels)
    return centred / (centred @ centred)


def _levels_here(family: str, factor: str, design: _Design) -> list[Any]:
    if factor in design.factors:
        return levels_of(design.cells, factor)
    known = sorted(design.factors)
    everywhere = {name for cell in design.cells for name in cell}
    if factor in everywhere:
        raise UsageError(
            f"contrasts.{family}: {factor} has one level here, or not all of these arms have it; "
            "choose other arms by 'within'"
        )
    raise UsageError(
        f"contrasts.{family}: no factor is called {factor!r}; {nearest(factor, known)}"
    )


def _weights(family: str, row: Array, design: _Design) -> dict[str, float]:
    matrix = model_matrix(design.cells, design.factors, design.interactions)
    solved = np.linalg.pinv(matrix.T) @ row
    if not np.allclose(matrix.T @ solved, row, atol=1e-8):
        raise UsageError(f"contrasts.{family}: {_why_not(matrix, row, design)}")
    weights = dict.fromkeys(design.arms, 0.0)
    for arm, weight in zip(design.arms, solved, strict=True):
        weights[arm] += float(weight)
    return {arm: round(weight, 12) for arm, weight in weights.items() if abs(weight) > 1e-12}


def _why_not(matrix: Array, row: Array, design: _Design) -> str:
    """Which factors the contrast cannot be told from, and the arms that would help."""
    for one, other in itertools.combinations(design.factors, 2):
        if extra := separating_cells(design.cells, one, other):
            arms = "; ".join(" with ".join(f"{k} {key(v)}" for k, v in c.items()) for c in extra)
            return (
                f"these arms cannot tell it: {one} and {other} move together. "
                f"Arms that would separate them: {arms}"
            )
    count = np.linalg.matrix_rank(matrix)
    return (
        f"these arms cannot tell it: {len(design.cells)} cells, {count} estimable effects; add "
        "combinations of the factors, or narrow it by 'within'"
    )


def _selections(family: str, file: ContrastFile, arms: Sequence[ArmSpec]) -> ContrastSpec:
    weights: dict[str, float] = {}
    for selection, sign in ((file.of, 1.0), (file.minus, -1.0)):
        names = _selected(family, selection, file.within, arms)
        for name in names:
            weights[name] = weights.get(name, 0.0) + sign / len(names)
    weights = {name: weight for name, weight in weights.items() if weight}
    if not weights:
        raise UsageError(f"contrasts.{family}: 'of' and 'minus' are the same arms")
    text = f"{_selection_said(file.of)} minus {_selection_said(file.minus)}{_said(file.within)}"
    return ContrastSpec(name=family, family=family, text=text, weights=weights)


def _selected(
    family: str, selection: str | dict[str, Any] | None, within: Any, arms: Sequence[ArmSpec]
) -> list[str]:
    if isinstance(selection, str):
        known = [arm.name for arm in arms]
        if selection not in known:
            raise UsageError(
                f"contrasts.{family}: no arm is called {selection!r}; {nearest(selection, known)}"
            )
        return [selection]
    chosen = _chosen(family, {**within, **(selection or {})}, arms)
    return list(dict.fromkeys(name for _, name in chosen))


def _selection_said(selection: str | dict[str, Any] | None) -> str:
    return levels_said(selection) if isinstance(selection, dict) else str(selection)


def _said(within: Mapping[str, Any]) -> str:
    return f", among {levels_said(within)}" if within else ""


def _averaged(text: str, design: _Design) -> str:
    grid = np.prod([len(levels_of(design.cells, name)) for name in design.factors])
    whole = len({tuple(key(cell[f]) for f in design.factors) for cell in design.cells}) == grid
    return "" if whole else " (a part of all combinations: assumes that effects add up)"
