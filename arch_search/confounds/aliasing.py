"""Factors that move together, found by the rank and the correlation of the design matrix."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.stats import contingency

from arch_search.experiment import ExperimentFile
from arch_search.factors import (
    Cell,
    is_estimable,
    key,
    levels_of,
    separating_cells,
    shared_factors,
)
from arch_search.plan_spec import ArmSpec, FindingSpec
from arch_search.wording import listed, shown_value

CORRELATED = 0.7  # Cramér's V between two factors from which a plan speaks of it


def aliased_factors(arms: Sequence[ArmSpec]) -> Iterator[FindingSpec]:
    """A finding for each factor whose effect the arms cannot tell from that of others."""
    cells = cells_of(arms)
    names = list(dict.fromkeys(name for cell in cells for name in cell))
    told: set[frozenset[str]] = set()
    for name in names:
        having = [cell for cell in cells if name in cell]
        factors = shared_factors(having)
        if name not in factors or name == "arm":
            continue
        others = [other for other in factors if other not in (name, "arm")]
        partners = [o for o in others if not is_estimable(having, name, [o])]
        for other in partners:
            if frozenset((name, other)) not in told:
                told.add(frozenset((name, other)))
                yield _aliased(having, name, other)
        if not partners and not is_estimable(having, name, others):
            text = (
                f"{name} cannot be told from {listed(others)} taken together: {len(having)} arms "
                f"are too few for their effects; add combinations of their levels"
            )
            yield FindingSpec(level="warning", subject="aliased factors", text=text)
    yield from _correlated(cells, names, told)


def cells_of(arms: Sequence[ArmSpec]) -> list[Cell]:
    """The factorial's cells: neither baseline nor controls, equal models in each of their cells."""
    return [
        cell
        for arm in arms
        if not arm.is_baseline and not arm.is_control
        for cell in (arm.factors, *arm.also)
    ]


def _aliased(cells: Sequence[Cell], one: str, other: str) -> FindingSpec:
    text = f"{one} and {other} move together ({together(cells, one, other)}): {NEITHER}"
    if extra := separating_cells(cells, one, other):
        text += f" Arms that would separate them: {combinations(extra)}."
    return FindingSpec(level="warning", subject="aliased factors", text=text)


NEITHER = "an effect of either cannot be told from one of the other."


def together(cells: Sequence[Cell], one: str, other: str) -> str:
    """Each level of the first with the levels of the second that it comes with."""
    parts = []
    for level in levels_of(cells, one):
        beside = levels_of([cell for cell in cells if key(cell[one]) == key(level)], other)
        parts.append(f"{one} {shown_value(level)} only with {listed(map(shown_value, beside))}")
    return "; ".join(parts)


def combinations(cells: Sequence[dict[str, Any]]) -> str:
    return "; ".join(
        ", ".join(f"{name} {shown_value(level)}" for name, level in cell.items()) for cell in cells
    )


def _correlated(
    cells: Sequence[Cell], names: Sequence[str], told: set[frozenset[str]]
) -> Iterator[FindingSpec]:
    for one, other in itertools.combinations([name for name in names if name != "arm"], 2):
        both = [cell for cell in cells if one in cell and other in cell]
        if frozenset((one, other)) in told or not {one, other} <= set(shared_factors(both)):
            continue
        rows, columns = ([key(cell[name]) for cell in both] for name in (one, other))
        table = np.asarray(contingency.crosstab(rows, columns)[1], int)
        value = contingency.association(table, method="cramer")
        if value >= CORRELATED:
            text = (
                f"{one} and {other} largely move together (Cramér's V {value:.2f}): their effects "
                "are told apart by few arms, with wide intervals"
            )
            yield FindingSpec(level="warning", subject="correlated factors", text=text)


def bundled_levels(file: ExperimentFile) -> Iterator[FindingSpec]:
    """Two variants of one block as levels of `with` that differ in more than one option."""
    named = {name: file.model.blocks[name] for name in file.arms.with_ if name in file.model.blocks}
    for (one, left), (other, right) in itertools.combinations(named.items(), 2):
        differ = [
            option
            for option in dict.fromkeys([*left, *right])
            if left.get(option) != right.get(option)
        ]
        if left.get("kind") == right.get("kind") and len(differ) > 1:
            text = (
                f"{one} and {other} are both {left.get('kind')} but differ in {listed(differ)} at "
                "once: which of these makes a difference cannot be told. Arms that change one at "
                "a time would tell (arms.vary)"
            )
            yield FindingSpec(level="warning", subject="bundled options", text=text)
