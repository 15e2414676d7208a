"""Every arm against the baseline, from the one linear model over all arms."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from arch_search.statistics.design import ROUNDING, Array
from arch_search.statistics.linear import Estimate, Fit, estimate, fit_arms


@dataclass(frozen=True, kw_only=True, slots=True)
class Mean:
    """An arm over its own seeds; the interval is t with n - 1 degrees of freedom."""

    arm: str
    n: int
    mean: float
    sd: float | None  # None for one seed: nothing says how much seeds vary; no interval at 0
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockedModel:
    """The fitted model. `df` 0 means that no noise could be estimated, and no interval stands;
    `no_noise` says why.

    differences: each other arm minus the baseline, all in one family.
    """

    baseline: str
    level: float
    df: int
    residual_sd: float | None
    critical: float | None
    means: tuple[Mean, ...]
    differences: tuple[Estimate, ...]
    no_noise: str = ""


def arm_mean(arm: str, values: Array, *, level: float = 0.95) -> Mean:
    """Mean and interval over an arm's own seeds."""
    n = len(values)
    mean = float(np.mean(values))
    if n < 2:
        return Mean(arm=arm, n=n, mean=mean, sd=None, low=None, high=None)
    sd = float(np.std(values, ddof=1))
    if sd <= ROUNDING * float(np.abs(values).max()):
        return Mean(arm=arm, n=n, mean=mean, sd=0.0, low=None, high=None)
    half = float(stats.t.ppf((1 + level) / 2, n - 1)) * sd / np.sqrt(n)
    return Mean(arm=arm, n=n, mean=mean, sd=sd, low=mean - half, high=mean + half)


def fit_blocked(
    table: pd.DataFrame, *, baseline: str, level: float = 0.95, margin: float | None = None
) -> BlockedModel:
    """Fit the arms and compare each with the baseline; arguments and errors as for `fit_arms`.

    Args:
        margin: the smallest difference that would matter, for the test of equivalence.
    """
    return compare_to(fit_arms(table, first=baseline), level=level, margin=margin)


def compare_to(fit: Fit, *, level: float = 0.95, margin: float | None = None) -> BlockedModel:
    """Every arm of a fit against its first."""
    table = fit.runs
    family = estimate(fit, against_first(fit.arms), level=level, margin=margin)
    return BlockedModel(
        baseline=fit.arms[0],
        level=level,
        df=fit.df,
        residual_sd=fit.residual_sd,
        critical=family.critical,
        means=tuple(
            arm_mean(arm, table.loc[table["arm"] == arm, "value"].to_numpy(float), level=level)
            for arm in fit.arms
        ),
        differences=family.estimates,
        no_noise=fit.no_noise,
    )


def against_first(arms: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """The contrast of each arm but the first with it, under the arm's name."""
    return {arm: {arm: 1.0, arms[0]: -1.0} for arm in arms[1:]}


def linked_arms(table: pd.DataFrame, baseline: str) -> set[str]:
    """The arms that share a seed with the baseline, directly or through other arms."""
    runs = list(zip(table["arm"], table["seed"], strict=True))
    arms, before = {baseline}, set[str]()
    while arms != before:
        before = arms
        seeds = {seed for arm, seed in runs if arm in arms}
        arms = arms | {arm for arm, seed in runs if seed in seeds}
    return arms
