"""Intervals that hold for several contrasts at once, and the differences they can resolve.

With one variance for all arms the joint law of the t statistics is a multivariate t, and against
one baseline Dunnett's procedure (JASA 50, 1955). Here an arm's variance is the larger of the pooled
and its own; critical values and p-values come from draws of that very rule, for any design and any
contrasts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import optimize
from scipy.special import ndtr

from arch_search.statistics.design import Array, Design, variance_shares
from arch_search.statistics.draws import Draws, draw, draw_balanced

_QUANTILES = 2_000  # of a standard error, for power: its middle matters there, not its tail


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Law:
    """How a family of contrasts comes out if all arms are equal, with equal normal noise.

    largest: sorted draws of the largest |t| of the family.
    scales: (contrasts, draws), a standard error as it is estimated, over the true one.
    """

    largest: Array
    scales: Array

    def critical(self, level: float = 0.95) -> float:
        """The c with P(max |t| <= c) = level."""
        if len(self.scales) == 1:
            return self.critical_alone(level)[0]
        return float(np.quantile(self.largest, level))

    def critical_alone(self, level: float = 0.95) -> list[float]:
        """The same for each contrast by itself."""
        return [_critical(level, scale) for scale in self.scales]

    def p_together(self, t: Array) -> Array:
        """P(max |T| >= |t_j|) for each contrast j: < 1 - level where |t_j| > critical(level)."""
        if len(self.scales) == 1:
            return self.p_alone(t)
        above = len(self.largest) - np.searchsorted(self.largest, np.abs(t))
        return (1 + above) / (1 + len(self.largest))

    def p_alone(self, t: Array) -> Array:
        """P(|T_j| >= |t_j|) for each contrast by itself."""
        return 2 * self.p_beyond(np.abs(t))

    def p_beyond(self, t: Array) -> Array:
        """P(T_j >= t_j), one-sided, for each contrast by itself."""
        return np.array(
            [np.mean(ndtr(-one * scale)) for one, scale in zip(t, self.scales, strict=True)]
        )

    def resolvable(self, level: float = 0.95) -> Array:
        """(contrasts,): the true value found with 80 % power, in standard errors as estimated.

        An estimated error is on average larger than the true one: its root mean square counts.
        """
        return _resolvable(self, level)


def law_of(draws: Draws, weights: Array, shares: Array) -> Law:
    """The law of a family.

    Args:
        weights: (contrasts, arms).
        shares: (contrasts, arms), from `variance_shares`.
    """
    scales = scales_of(draws, shares)
    true = np.sqrt(shares.sum(axis=1))
    t = np.abs(draws.effects @ (weights / true[:, None]).T) / scales.T
    return Law(largest=np.sort(t.max(axis=1)), scales=scales)


def scales_of(draws: Draws, shares: Array) -> Array:
    """`Law.scales` of contrasts with these shares (contrasts, arms) in the arms' variances."""
    variances = draws.variances @ (shares / shares.sum(axis=1, keepdims=True)).T
    return np.sqrt(np.ascontiguousarray(variances.T))


def resolvable(scales: Array, critical: float, *, power: float = 0.8) -> Array:
    """(contrasts,): the true value found with this power by |t| > critical, in true errors.

    With t = (z + value) / scale, z standard normal, the power is a mean over the scale's draws.

    Args:
        scales: (contrasts, draws), as in `Law`.
    """
    share = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    cuts = critical * np.quantile(scales, share, axis=1).T
    return np.array([_found_with(power, one) for one in cuts])


def law_on(design: Design, weights: Array) -> Law:
    """The law of a family on this design, kept: all metrics of an experiment share it."""
    return _law(design, weights.shape, np.round(weights, 12).astype(float).tobytes())


@lru_cache(maxsize=8)
def _law(design: Design, shape: tuple[int, int], weights: bytes) -> Law:
    matrix = np.frombuffer(weights).reshape(shape)
    return law_of(_drawn(design), matrix, variance_shares(design, matrix))


@lru_cache(maxsize=2)
def _drawn(design: Design) -> Draws:
    return draw_balanced(len(design.of_arm), design.seeds) if design.seeds else draw(design)


def holm(p: Array) -> Array:
    """Holm's adjusted p-values (1979). statsmodels' collects all garbage first: 0.1 s a call."""
    order = np.argsort(p)
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(stepped, 1)
    return adjusted


@lru_cache(maxsize=16)
def _resolvable(law: Law, level: float) -> Array:
    return resolvable(law.scales, law.critical(level)) / np.sqrt(np.mean(law.scales**2, axis=1))


def _critical(level: float, scale: Array) -> float:
    """The c with P(|z| <= c scale) = level, z standard normal and each scale equally likely."""
    return _root(lambda c: 1 - 2 * float(np.mean(ndtr(-c * scale))) - level, 0.0, 4.0)


def _found_with(power: float, cuts: Array) -> float:
    """The v with P(|z + v| > cut) = power, z standard normal and each cut equally likely."""
    return _root(lambda v: float(np.mean(ndtr(v - cuts) + ndtr(-v - cuts))) - power, 0.0, 4.0)


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    while rising(high) < 0:
        high *= 2
    return float(optimize.brentq(rising, low, high, xtol=1e-6))  # type: ignore[arg-type]
