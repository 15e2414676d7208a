"""Intervals that hold for several contrasts at once, and the differences they can resolve.

The joint law of the t statistics of one linear model is a multivariate t; for contrasts against
one baseline this is Dunnett's procedure (JASA 50, 1955), here for any design and any contrasts.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

Array = NDArray[np.float64]

_DRAWS = 400_000  # of max |T|; leaves about 0.3 % of error in a critical value
_CHUNK = 50_000
_QUANTILES = 1_000  # of chi², for power
_SEED = 0  # fixed: the same contrasts always give the same interval


def correlation_of(covariance: Array) -> Array:
    """The correlation matrix (k, k) of contrasts with this covariance."""
    scale = np.sqrt(np.diag(covariance))
    return covariance / np.outer(scale, scale)


def dunnett_correlation(contrasts: int) -> Array:
    """Contrasts against one baseline with as many runs as every other arm: 1/2 off the diagonal."""
    return (np.eye(contrasts) + 1) / 2


def critical_value(correlation: Array, df: float, level: float = 0.95) -> float:
    """The c with P(max |T_i| <= c) = level, T multivariate t with this correlation (k, k)."""
    if len(correlation) == 1:
        return float(stats.t.ppf((1 + level) / 2, df))
    return float(np.quantile(_largest(correlation, df), level))


def adjusted_p_values(t: Array, correlation: Array, df: float) -> Array:
    """P(max |T_i| >= |t_j|) for each contrast j: single-step, for all contrasts at once.

    From the same draws as `critical_value`, so that p < 1 - level and an interval without zero
    always agree.
    """
    if len(t) == 1:
        return 2 * stats.t.sf(np.abs(t), df)
    draws = _largest(correlation, df)
    above = len(draws) - np.searchsorted(draws, np.abs(t))
    return (1 + above) / (1 + len(draws))


def holm(p: Array) -> Array:
    """Holm's adjusted p-values (1979). statsmodels' collects all garbage first: 0.1 s a call."""
    order = np.argsort(p)
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(stepped, 1)
    return adjusted


def _largest(correlation: Array, df: float) -> Array:
    """Sorted draws of max |T_i|."""
    return _drawn(np.round(correlation, 6).tobytes(), len(correlation), float(df))


@lru_cache(maxsize=16)
def _drawn(correlation: bytes, contrasts: int, df: float) -> Array:
    chi = np.random.default_rng([_SEED, 1]).chisquare(df, _DRAWS)
    return np.sort(_drawn_normal(correlation, contrasts) / np.sqrt(chi / df))


@lru_cache(maxsize=8)
def _drawn_normal(correlation: bytes, contrasts: int) -> Array:
    """Draws of max |Z_i|, which plans of other numbers of seeds share: the costly part."""
    matrix = np.frombuffer(correlation).reshape(contrasts, contrasts)
    values, vectors = np.linalg.eigh(matrix)  # not Cholesky: contrasts may depend on each other
    root = vectors * np.sqrt(np.maximum(values, 0))
    rng = np.random.default_rng(_SEED)
    largest = [
        np.abs(rng.standard_normal((_CHUNK, contrasts)) @ root.T).max(axis=1)
        for _ in range(_DRAWS // _CHUNK)
    ]
    return np.concatenate(largest)


def resolvable(standard_error: float, critical: float, df: float, *, power: float = 0.8) -> float:
    """The true difference found with this power by a test that rejects beyond `critical`.

    Solves P(|T| > c) = power with T noncentral t, non-centrality difference / standard error. T is
    a normal over the square root of chi² / df, so P is a mean over that root's quantiles
    (scipy.stats.nct gives NaN for some arguments of interest).
    """
    return standard_error * _noncentrality(critical, df, power)


@lru_cache(maxsize=256)
def _noncentrality(critical: float, df: float, power: float) -> float:
    share = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    cut = critical * np.sqrt(stats.chi2.ppf(share, df) / df)

    def miss(ncp: float) -> float:
        return float(np.mean(stats.norm.sf(cut - ncp) + stats.norm.cdf(-cut - ncp))) - power

    upper = critical + 3.0
    while miss(upper) < 0:
        upper *= 1.5
    return float(optimize.brentq(miss, 0.0, upper, xtol=1e-6))  # type: ignore[arg-type]


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
