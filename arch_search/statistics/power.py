"""What a planned design can resolve, before any of it has run.

In arms x seeds with seeds as blocks, a contrast with weights w has the standard error
sigma sqrt(sum w² / seeds) on (arms - 1)(seeds - 1) degrees of freedom; sigma is what is left of
the noise between seeds once what a seed does to all arms alike is taken out.
"""

import numpy as np

from arch_search.statistics.simultaneous import (
    Array,
    correlation_of,
    critical_value,
    resolvable,
)

MOST_SEEDS = 1_000


def resolvable_in_noise(
    weights: Array, seeds: int, *, level: float = 0.95, power: float = 0.8
) -> Array | None:
    """The true value of each contrast that is found with this power, in units of sigma.

    Args:
        weights: (contrasts, arms), all tested together at 1 - `level`.
    Returns:
        (contrasts,); None if no degree of freedom is left to estimate the noise.
    """
    df = (weights.shape[1] - 1) * (seeds - 1)
    if df < 1:
        return None
    covariance = weights @ weights.T / seeds
    critical = critical_value(correlation_of(covariance), df, level)
    errors = np.sqrt(np.diag(covariance))
    return np.array([resolvable(float(e), critical, df, power=power) for e in errors])


def seeds_to_resolve(
    weights: Array, contrast: int, size: float, *, level: float = 0.95, power: float = 0.8
) -> int | None:
    """The fewest seeds with which contrast `contrast` of a true `size`, in sigma, is found.

    None if more than `MOST_SEEDS` would be needed.
    """

    def enough(seeds: int) -> bool:
        found = resolvable_in_noise(weights, seeds, level=level, power=power)
        return found is not None and bool(found[contrast] <= size)

    high = 2
    while not enough(high):
        if high >= MOST_SEEDS:
            return None
        high = min(2 * high, MOST_SEEDS)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
