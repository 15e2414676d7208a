"""Main effects and interactions of the axes, from the one linear model. Free of torch.

A factor's test asks whether the arms' means depend on it once other factors are allowed for,
effects adding up (type II); an interaction's, whether two effects do not add up: the F tests of
an analysis of variance, with the noise pooled. Nested factors are left out where not all arms have
them.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from arch_search.factors import Array, key, levels_of, model_matrix, shared_factors
from arch_search.plan_spec import ArmSpec
from arch_search.statistics.linear import Fit, half_widths_alone
from arch_search.statistics.simultaneous import holm

_EXPLICIT = "arm"  # the factor of explicit arms: their name, which is no axis


@dataclass(frozen=True, kw_only=True, slots=True)
class FactorTest:
    """An F test of one main effect, or of an interaction of two factors.

    p_holm: adjusted for all such tests of the experiment. spread: from the lowest to the highest of
    the levels' means (of the departures from adding up, for an interaction).
    """

    factors: tuple[str, ...]
    f: float
    degrees: int
    p: float
    p_holm: float
    spread: float

    @property
    def name(self) -> str:
        return " x ".join(self.factors)


def factor_tests(arms: Sequence[ArmSpec], fit: Fit) -> tuple[FactorTest, ...]:
    """Tests of each factor and each pair of factors that these arms can tell."""
    cells, of_arm = crossed_cells(arms, fit)
    factors = shared_factors(cells)
    if fit.df < 1 or not fit.residual_sd or not factors:
        return ()
    found: list[tuple[tuple[str, ...], float, int, float]] = []
    for factor in factors:
        without = model_matrix(cells, [name for name in factors if name != factor])
        space = _added(without, model_matrix(cells, factors))
        found += _test((factor,), space, of_arm, fit, model_matrix(cells, [factor])[:, 1:])
    for pair in itertools.combinations(factors, 2):
        space = _added(model_matrix(cells, factors), model_matrix(cells, factors, [pair]))
        found += _test(pair, space, of_arm, fit, None)
    if not found:
        return ()
    adjusted = holm(np.array([_tail(f, q, fit.df) for _, f, q, _ in found]))
    return tuple(
        FactorTest(factors=names, f=f, degrees=q, p=_tail(f, q, fit.df), p_holm=float(p),
                   spread=spread)
        for (names, f, q, spread), p in zip(found, adjusted, strict=True)
    )  # fmt: skip


def crossed_cells(arms: Sequence[ArmSpec], fit: Fit) -> tuple[list[Mapping[str, Any]], Array]:
    """The cells of the factorial among fitted arms, and (cells, arms of the fit): what is what."""
    cells: list[Mapping[str, Any]] = []
    rows = []
    for arm in arms:
        if arm.is_baseline or arm.is_control or arm.name not in fit.arms:
            continue
        for factors in (arm.factors, *arm.also):
            cells.append({k: v for k, v in factors.items() if k != _EXPLICIT})
            rows.append([float(arm.name == name) for name in fit.arms])
    return cells, np.array(rows).reshape(len(cells), len(fit.arms))


def interaction_means(
    arms: Sequence[ArmSpec], fit: Fit, pair: tuple[str, str], *, level: float = 0.95
) -> pd.DataFrame:
    """Means of each combination of two factors over the others, minus the fit's first arm.

    Columns: the two factors' names (levels as text), value, low, high. Intervals hold one by one.
    """
    cells, of_arm = crossed_cells(arms, fit)
    rows, means = [], []
    for one, other in itertools.product(*(levels_of(cells, name) for name in pair)):
        here = [i for i, cell in enumerate(cells)
                if (key(cell[pair[0]]), key(cell[pair[1]])) == (key(one), key(other))]  # fmt: skip
        if not here:
            continue
        rows.append((key(one), key(other)))
        means.append(of_arm[here].mean(axis=0))
    weights = np.array(means) - np.eye(len(fit.arms))[0]
    values, half = weights @ fit.effects, half_widths_alone(fit, weights, level=level)
    found = {"value": values, "low": values - half, "high": values + half}
    return pd.DataFrame(rows, columns=list(pair)).assign(**found)


def factor_sentences(tests: Sequence[FactorTest]) -> tuple[str, ...]:
    """What the tests say. They were not declared, so they suggest and do not settle."""
    found = [test for test in tests if test.p_holm <= 0.05]
    said = []
    if found:
        listed = ", ".join(f"{test.name} (means {test.spread:.2g} apart)" for test in found)
        said.append(
            "Factors and combinations that stand out, not declared beforehand and adjusted for "
            f"all such tests: {listed}."
        )
    pairs = [test for test in tests if len(test.factors) == 2]
    if open_ := [test.name for test in pairs if test.p_holm > 0.05]:
        said.append(
            f"Whether effects add up is not resolved for {', '.join(open_)}: a difference between "
            "single arms there may still belong to their combination."
        )
    return tuple(said)


def _tail(f: float, degrees: int, df: int) -> float:
    return float(stats.f.sf(f, degrees, df))


def _added(without: Array, with_: Array) -> Array:
    """An orthonormal basis (cells, q) of what the larger model can say and the smaller cannot."""
    left = with_ - without @ np.linalg.lstsq(without, with_, rcond=None)[0]
    vectors, sizes, _ = np.linalg.svd(left, full_matrices=False)
    return vectors[:, sizes > 1e-8]


def _test(
    names: tuple[str, ...], space: Array, of_arm: Array, fit: Fit, levels: Array | None
) -> list[tuple[tuple[str, ...], float, int, float]]:
    if not space.shape[1]:
        return []
    weights = space.T @ of_arm
    values, covariance = weights @ fit.effects, weights @ fit.covariance @ weights.T
    f = float(values @ np.linalg.pinv(covariance) @ values) / space.shape[1]
    shape = space @ (space.T @ (of_arm @ fit.effects))  # the effect, cell by cell
    if levels is not None:
        shape = levels.T @ shape / levels.sum(axis=0)
    return [(names, f, space.shape[1], float(np.ptp(shape)))]
