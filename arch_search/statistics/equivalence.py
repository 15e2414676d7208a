"""Two one-sided tests (Schuirmann, 1987): is a value shown to lie within a margin around zero?"""

import numpy as np
from scipy import stats

from arch_search.statistics.simultaneous import Array


def two_one_sided(values: Array, errors: Array, df: float, margin: float) -> Array:
    """The larger of the two one-sided p-values of each value: small if it lies within ±margin."""
    nearest = (margin - np.abs(values)) / errors
    return stats.t.sf(nearest, df)
