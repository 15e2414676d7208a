"""Intervals that hold for several contrasts at once, and the differences they can resolve.

The joint law of the t statistics of one linear model is a multivariate t; for contrasts against
one baseline this is Dunnett's procedure (JASA 50, 1955), here for any design and any contrasts.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

Array = NDArray[np.float64]

_SEED = 0  # of the quasi-random integration: the same contrasts always give the same interval
_POINTS = 1_000  # for each dimension; leaves about 0.2 % of error in a critical value


def correlation_of(covariance: Array) -> Array:
    """The correlation matrix (k, k) of contrasts with this covariance."""
    scale = np.sqrt(np.diag(covariance))
    return covariance / np.outer(scale, scale)


def dunnett_correlation(contrasts: int) -> Array:
    """Contrasts against one baseline with as many runs as every other arm: 1/2 off the diagonal."""
    return (np.eye(contrasts) + 1) / 2


def critical_value(correlation: Array, df: float, level: float = 0.95) -> float:
    """The c with P(max |T_i| <= c) = level, T multivariate t with this correlation (k, k)."""
    rounded = np.round(correlation, 6)
    return _critical_value(rounded.tobytes(), len(rounded), float(df), level)


@lru_cache(maxsize=512)
def _critical_value(correlation: bytes, contrasts: int, df: float, level: float) -> float:
    single = float(stats.t.ppf((1 + level) / 2, df))
    if contrasts == 1:
        return single
    matrix = np.frombuffer(correlation).reshape(contrasts, contrasts)
    bonferroni = float(stats.t.ppf(1 - (1 - level) / (2 * contrasts), df))
    return float(
        optimize.brentq(
            lambda c: _within(matrix, df, c) - level, single * 0.999, bonferroni * 1.01, xtol=1e-4
        )  # type: ignore[arg-type]
    )


def _within(correlation: Array, df: float, c: float) -> float:
    """P(max |T_i| <= c)."""
    bound = np.full(len(correlation), c)
    return float(
        stats.multivariate_t.cdf(
            bound,
            shape=correlation,  # type: ignore[arg-type]
            df=df,  # type: ignore[arg-type]
            allow_singular=True,
            maxpts=_POINTS * len(correlation),
            lower_limit=-bound,
            random_state=np.random.default_rng(_SEED),
        )
    )


def adjusted_p_values(t: Array, correlation: Array, df: float) -> Array:
    """P(max |T_i| >= |t_j|) for each contrast j: single-step, for all contrasts at once."""
    if len(t) == 1:
        return 2 * stats.t.sf(np.abs(t), df)
    return np.array([1 - _within(correlation, df, float(abs(value))) for value in t])


def resolvable(standard_error: float, critical: float, df: float, *, power: float = 0.8) -> float:
    """The true difference found with this power by a test that rejects beyond `critical`.

    Solves P(|T| > c) = power with T noncentral t, non-centrality difference / standard error.
    """

    def miss(ncp: float) -> float:
        found = stats.nct.sf(critical, df, ncp) + stats.nct.cdf(-critical, df, ncp)
        return float(found) - power

    upper = critical + 3.0
    while miss(upper) < 0:
        upper *= 1.5
    return standard_error * float(optimize.brentq(miss, 0.0, upper, xtol=1e-6))  # type: ignore[arg-type]


def planned_resolvable(
    *, arms: int, seeds: int, noise: float, level: float = 0.95, power: float = 0.8
) -> float | None:
    """What a plan of `arms` (baseline included) by `seeds` can tell from the baseline.

    Args:
        noise: the standard deviation between seeds that is left once seeds are blocks.
    Returns:
        the smallest difference found with this power; None if nothing is left to estimate noise.
    """
    df = (arms - 1) * (seeds - 1)
    if df < 1:
        return None
    critical = critical_value(dunnett_correlation(arms - 1), df, level)
    return resolvable(noise * np.sqrt(2 / seeds), critical, df, power=power)
