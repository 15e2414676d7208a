"""A check of the linear model that assumes no normal noise: shuffle the arms within each seed."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from arch_search.statistics.design import (
    Array,
    Design,
    arm_variances,
    design_of,
    variance_shares,
)
from arch_search.statistics.linear import Weights, weight_matrix

_ENUMERATED = 7  # arms; with more, ties are too rare among all arrangements to matter


@dataclass(frozen=True, kw_only=True, slots=True)
class PermutationCheck:
    """P-values adjusted for all contrasts. None falls below `smallest_p`, whatever the effect.

    The largest |t| is the same for some relabellings of the arms (of those that are only ever
    compared with one baseline, say): `smallest_p` is the share of arrangements so tied.
    """

    p: dict[str, float]
    shuffles: int
    smallest_p: float


def permutation_check(
    table: pd.DataFrame,
    *,
    baseline: str,
    contrasts: Mapping[str, Weights] | None = None,
    shuffles: int = 4999,
    seed: int = 0,
) -> PermutationCheck:
    """Adjusted p-values of max |t| over contrasts, from shuffles of the labels within each seed.

    Its null hypothesis is that all arms are the same, not that one contrast alone is zero.

    Args:
        table: columns `arm`, `seed`, `value`, as for `fit_arms`.
        contrasts: weights over arms; every arm against the baseline if None.
    """
    table = table.sort_values(["seed", "arm"], kind="stable")
    arms = [baseline, *(a for a in dict.fromkeys(table["arm"]) if a != baseline)]
    if contrasts is None:
        contrasts = {arm: {arm: 1.0, baseline: -1.0} for arm in arms[1:]}
    weights = weight_matrix(arms, contrasts)
    values = table["value"].to_numpy(float)
    blocks = [np.flatnonzero(table["seed"] == s) for s in dict.fromkeys(table["seed"])]
    rng = np.random.default_rng(seed)
    shuffled = np.repeat(values[:, None], shuffles, axis=1)
    for block in blocks:
        shuffled[block] = rng.permuted(shuffled[block], axis=0)
    design = design_of(list(table["arm"]), list(table["seed"]), arms)
    observed = np.abs(t_statistics(design, values[:, None], weights))[:, 0]
    largest = np.abs(t_statistics(design, shuffled, weights)).max(axis=0)
    # the observed arrangement is one of the possible ones: hence the ones
    p = (1 + (largest[None] >= observed[:, None] - 1e-9).sum(axis=1)) / (1 + shuffles)
    ways = math.prod(math.factorial(len(block)) for block in blocks)
    smallest = max(1 / (1 + shuffles), min(1.0, _tied(weights) / ways))
    return PermutationCheck(
        p={name: float(value) for name, value in zip(contrasts, p, strict=True)},
        shuffles=shuffles,
        smallest_p=smallest,
    )


def many_contrasts(design: Design, values: Array, weights: Array) -> tuple[Array, Array]:
    """Estimates and standard errors of contrasts, for many experiments of one design at once.

    Args:
        values: (runs, experiments).   weights: (contrasts, arms).
    Returns:
        estimates and standard errors, (contrasts, experiments) each.
    """
    variances = arm_variances(design, design.residuals @ values)
    errors = np.sqrt(variance_shares(design, weights) @ variances)
    return weights @ design.effects @ values, errors


def t_statistics(design: Design, values: Array, weights: Array) -> Array:
    """t of the contrasts of `many_contrasts`; 0 where equal runs leave neither effect nor noise."""
    estimates, errors = many_contrasts(design, values, weights)
    return estimates / np.maximum(errors, np.finfo(float).tiny)


def _tied(weights: Array) -> int:
    """How many relabellings of the arms leave the contrasts the same, signs apart."""
    arms = weights.shape[1]
    if arms > _ENUMERATED:
        return 1
    wanted = _unsigned(weights)
    orders = itertools.permutations(range(arms))
    return sum(_unsigned(weights[:, list(order)]) == wanted for order in orders)


def _unsigned(weights: Array) -> set[tuple[float, ...]]:
    rounded = np.round(weights, 9) + 0.0
    return {max(tuple(row), tuple(-row + 0.0)) for row in rounded}
