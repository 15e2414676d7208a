"""A check of the linear model that assumes no normal noise: shuffle the arms within each seed."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from arch_search.statistics.simultaneous import Array


@dataclass(frozen=True, kw_only=True, slots=True)
class PermutationCheck:
    """P-values adjusted for all arms. None can fall below `smallest_p`, however large the effect.

    The largest |t| is the same however the arms other than the baseline are named, and (two arms)
    whichever of the two is the baseline: `smallest_p` is the share of arrangements so tied.
    """

    p: dict[str, float]
    shuffles: int
    smallest_p: float


def permutation_check(
    table: pd.DataFrame, *, baseline: str, shuffles: int = 4999, seed: int = 0
) -> PermutationCheck:
    """Adjusted p-values of max |t| over arms, from shuffles of the arms' labels within each seed.

    Args:
        table: columns `arm`, `seed`, `value`, as for `fit_blocked`.
    """
    table = table.sort_values(["seed", "arm"], kind="stable")
    arms = [baseline, *(a for a in dict.fromkeys(table["arm"]) if a != baseline)]
    design = _design(table, arms)
    values = table["value"].to_numpy(float)
    blocks = [np.flatnonzero(table["seed"] == s) for s in dict.fromkeys(table["seed"])]
    rng = np.random.default_rng(seed)
    shuffled = np.repeat(values[:, None], shuffles, axis=1)
    for block in blocks:
        shuffled[block] = rng.permuted(shuffled[block], axis=0)
    observed = _t_statistics(design, values[:, None], len(arms) - 1)[:, 0]
    largest = _t_statistics(design, shuffled, len(arms) - 1).max(axis=0)
    # the observed arrangement is one of the possible ones: hence the ones
    p = (1 + (largest[None] >= observed[:, None] - 1e-9).sum(axis=1)) / (1 + shuffles)
    ways = math.prod(math.factorial(len(block)) for block in blocks)
    tied = max(2, math.factorial(len(arms) - 1))
    smallest = max(1 / (1 + shuffles), min(1.0, tied / ways))
    return PermutationCheck(
        p={arm: float(value) for arm, value in zip(arms[1:], p, strict=True)},
        shuffles=shuffles,
        smallest_p=smallest,
    )


def _design(table: pd.DataFrame, arms: list[str]) -> Array:
    """(runs, arms - 1 + seeds): the arms' columns first, then one for each seed."""
    seeds = list(dict.fromkeys(table["seed"]))
    arm_columns = [(table["arm"] == arm).to_numpy(float) for arm in arms[1:]]
    seed_columns = [(table["seed"] == seed).to_numpy(float) for seed in seeds]
    return np.stack([*arm_columns, *seed_columns], axis=1)


def _t_statistics(design: Array, values: Array, arms: int) -> Array:
    """|t| of the first `arms` coefficients for each column of values (runs, columns)."""
    inverse = np.linalg.pinv(design)
    coefficients = inverse @ values
    residual = values - design @ coefficients
    df = len(design) - np.linalg.matrix_rank(design)
    variance = (residual**2).sum(axis=0) / max(df, 1)
    scale = np.sqrt(np.diag(inverse @ inverse.T)[:arms, None] * variance[None])
    return np.abs(coefficients[:arms]) / np.maximum(scale, np.finfo(float).tiny)
