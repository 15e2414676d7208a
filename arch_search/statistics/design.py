"""What least squares makes of any values of a design: arms, with seeds as blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

ROUNDING = 1e-12  # of the largest value: noise below this share cannot be told from none
_NOTHING = 1e-9  # fewer degrees of freedom than this are rounding


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Design:
    """Linear maps from the values of all runs, in their order. Equal designs are one object.

    effects: (arms, runs), to each arm's effect; only their contrasts mean something.
    residuals: (runs, runs), to what is left.   of_arm: (arms, runs), 1 where a run is of an arm.
    degrees: (arms,), how much of the degrees of freedom `df` lies in each arm's residuals.
    seeds: that every arm has, once each; 0 where a run is missing.
    """

    effects: Array
    residuals: Array
    of_arm: Array
    degrees: Array
    df: int
    seeds: int


def design_of(arm: Sequence[str], seed: Sequence[int], arms: Sequence[str]) -> Design:
    """The design in which run i is of `arm[i]` with `seed[i]`."""
    seeds = list(dict.fromkeys(seed))
    return _design(
        tuple(list(arms).index(one) for one in arm), tuple(seeds.index(one) for one in seed)
    )


@lru_cache(maxsize=64)
def _design(arm: tuple[int, ...], seed: tuple[int, ...]) -> Design:
    of_arm = np.equal.outer(np.arange(max(arm) + 1), arm).astype(float)
    of_seed = np.equal.outer(np.arange(1, max(seed) + 1), seed).astype(float)
    matrix = np.vstack([of_arm, of_seed]).T  # (runs, arms + seeds - 1)
    inverse = np.linalg.pinv(matrix)
    whole = len(set(zip(arm, seed, strict=True))) == len(arm) == len(of_arm) * (max(seed) + 1)
    residuals = np.eye(len(matrix)) - matrix @ inverse
    return Design(
        effects=inverse[: len(of_arm)],
        residuals=residuals,
        of_arm=of_arm,
        degrees=of_arm @ np.diag(residuals),
        df=len(matrix) - int(np.linalg.matrix_rank(matrix)),
        seeds=max(seed) + 1 if whole else 0,
    )


def pooled_variance(design: Design, residuals: Array) -> Array:
    """(experiments,), from residuals (runs, experiments); NaN without degrees of freedom."""
    return (residuals**2).sum(axis=0) / (design.df or np.nan)


def own_variances(design: Design, residuals: Array) -> Array:
    """(arms, experiments): each arm's from its own residuals alone; NaN where it has none."""
    usable = np.where(design.degrees > _NOTHING, design.degrees, np.nan)
    return (design.of_arm @ residuals**2) / usable[:, None]


def arm_variances(design: Design, residuals: Array) -> Array:
    """(arms, experiments): the larger of the pooled variance and the arm's own.

    A quiet arm thus gains nothing, and a noisy one is not flattered by the others.
    """
    return np.fmax(pooled_variance(design, residuals)[None], own_variances(design, residuals))


def variance_shares(design: Design, weights: Array) -> Array:
    """(contrasts, arms): what each arm's variance adds to the variance of each contrast's estimate.

    Args:
        weights: (contrasts, arms).
    """
    return (weights @ design.effects) ** 2 @ design.of_arm.T
