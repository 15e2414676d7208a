"""The difference of two sums over the same items, divided by a third, with the items resampled."""

from dataclasses import dataclass

import numpy as np

from arch_search.statistics.design import Array


@dataclass(frozen=True, kw_only=True, slots=True)
class RatioDifference:
    """sum(differences) / sum(sizes), with a bootstrap interval over the items."""

    value: float
    low: float
    high: float


def bootstrap_ratio(
    differences: Array, sizes: Array, *, resamples: int = 2_000, level: float = 0.95, seed: int = 0
) -> tuple[RatioDifference, ...]:
    """The ratio for several arms over the same items, all with the same resampled items.

    Args:
        differences: (arms, items), each arm minus the baseline, item by item.
        sizes: (items,), what the sum is divided by.
    Returns:
        Percentile intervals: with fewer than about 20 items they are too narrow.
    """
    items = len(sizes)
    drawn = np.random.default_rng(seed).multinomial(items, np.full(items, 1 / items), resamples)
    resampled = (differences @ drawn.T) / (sizes @ drawn.T)
    tail = (1 - level) / 2
    lows, highs = np.quantile(resampled, [tail, 1 - tail], axis=1)
    values = differences.sum(axis=1) / sizes.sum()
    return tuple(
        RatioDifference(value=float(v), low=float(a), high=float(b))
        for v, a, b in zip(values, lows, highs, strict=True)
    )
