"""What a planned design can resolve, before any of it has run.

In arms x seeds with seeds as blocks, a contrast with weights w has the standard error
sigma sqrt(sum w² / seeds); sigma is what is left of the noise between seeds once what a seed does
to all arms alike is taken out. It is estimated from (arms - 1)(seeds - 1) degrees of freedom, and
for each arm by the larger of the pooled value and its own: power is averaged over what comes of it.
"""

import math
from functools import lru_cache

import numpy as np

from arch_search.statistics.design import Array
from arch_search.statistics.draws import Draws, draw_balanced
from arch_search.statistics.simultaneous import law_of, resolvable, scales_of

MOST_SEEDS = 1_000
_FIRST_GUESS, _STEPS = 5, 4


def resolvable_in_noise(
    weights: Array, seeds: int, *, level: float = 0.95, power: float = 0.8
) -> Array | None:
    """The true value of each contrast that is found with this power, in units of sigma.

    Args:
        weights: (contrasts, arms), all tested together at 1 - `level`.
    Returns:
        (contrasts,); None if no degree of freedom is left to estimate the noise.
    """
    if (weights.shape[1] - 1) * (seeds - 1) < 1:
        return None
    matrix = np.asarray(weights, float)
    return np.array(_resolvable(matrix.tobytes(), matrix.shape, seeds, level, power))


@lru_cache(maxsize=256)
def _resolvable(
    weights: bytes, shape: tuple[int, int], seeds: int, level: float, power: float
) -> tuple[float, ...]:
    matrix = np.frombuffer(weights).reshape(shape)
    draws = _draws(shape[1], seeds)
    critical = law_of(draws, matrix, matrix**2 / seeds).critical(level)
    # which arm has which weight is all the same to a balanced design: alike ones get one number
    shares = np.round(np.sort(matrix**2, axis=1) / (matrix**2).sum(axis=1, keepdims=True), 9)
    kinds, kind = np.unique(shares, axis=0, return_inverse=True)
    in_errors = resolvable(scales_of(draws, kinds), critical, power=power)[kind]
    return tuple(float(size) for size in in_errors * np.sqrt((matrix**2).sum(axis=1) / seeds))


@lru_cache(maxsize=2)
def _draws(arms: int, seeds: int) -> Draws:
    return draw_balanced(arms, seeds)


def seeds_to_resolve(
    weights: Array, contrast: int, size: float, *, level: float = 0.95, power: float = 0.8
) -> int | None:
    """The fewest seeds with which contrast `contrast` of a true `size`, in sigma, is found.

    None if more than `MOST_SEEDS` would be needed.
    """

    def found(seeds: int) -> float:
        sizes = resolvable_in_noise(weights, seeds, level=level, power=power)
        return float("inf") if sizes is None else float(sizes[contrast])

    if found(MOST_SEEDS) > size:
        return None
    seeds = _FIRST_GUESS
    for _ in range(_STEPS):  # what is found falls nearly as one over the root of the seeds
        seeds = math.ceil(seeds * (found(seeds) / size) ** 2)
        seeds = min(max(seeds, 2), MOST_SEEDS)
    while found(seeds) > size:
        seeds += 1
    while seeds > 2 and found(seeds - 1) <= size:
        seeds -= 1
    return seeds
