"""One linear model over all arms: value = arm + seed + noise, the noise pooled over all arms."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import statsmodels.formula.api as smf
from scipy import stats

from arch_search.statistics.simultaneous import (
    Array,
    adjusted_p_values,
    correlation_of,
    critical_value,
    resolvable,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mean:
    """An arm over its own seeds; the interval is t with n - 1 degrees of freedom."""

    arm: str
    n: int
    mean: float
    sd: float | None  # None for one seed: nothing says how much seeds vary
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """An arm minus the baseline; `low` to `high` hold for all arms at once."""

    arm: str
    difference: float
    standard_error: float | None
    low: float | None
    high: float | None
    p: float | None  # adjusted for all arms
    resolvable: float | None  # found with 80 % power at this noise


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockedModel:
    """The fitted model. `df` 0 means that no noise could be estimated, and no interval stands."""

    baseline: str
    level: float
    df: int
    residual_sd: float | None
    critical: float | None
    means: tuple[Mean, ...]
    differences: tuple[Difference, ...]


def arm_mean(arm: str, values: Array, *, level: float = 0.95) -> Mean:
    """Mean and interval over an arm's own seeds."""
    n = len(values)
    mean = float(np.mean(values))
    if n < 2:
        return Mean(arm=arm, n=n, mean=mean, sd=None, low=None, high=None)
    sd = float(np.std(values, ddof=1))
    half = float(stats.t.ppf((1 + level) / 2, n - 1)) * sd / np.sqrt(n)
    return Mean(arm=arm, n=n, mean=mean, sd=sd, low=mean - half, high=mean + half)


def fit_blocked(table: pd.DataFrame, *, baseline: str, level: float = 0.95) -> BlockedModel:
    """Fit value ~ arm + seed by least squares and compare every arm with the baseline.

    Seeds are blocks: what a seed does to all arms alike cancels. A missing (arm, seed) is allowed;
    the difference then rests on the seeds that the model can link.

    Args:
        table: columns `arm`, `seed`, `value` (finite), one row a run.
    Raises:
        ValueError: the baseline has no run, or an arm shares no seed, even through other arms,
            with the baseline, so that seed and arm cannot be told apart.
    """
    arms = list(dict.fromkeys(table["arm"]))
    if baseline not in arms:
        raise ValueError(f"the baseline {baseline!r} has no finished run to compare with")
    others = [arm for arm in arms if arm != baseline]
    means = tuple(
        arm_mean(arm, table.loc[table["arm"] == arm, "value"].to_numpy(float), level=level)
        for arm in arms
    )
    if not others:
        return BlockedModel(baseline=baseline, level=level, df=0, residual_sd=None, critical=None,
                            means=means, differences=())  # fmt: skip
    _require_linked(table, others)
    data = table.assign(
        arm=pd.Categorical(table["arm"], [baseline, *others]),
        seed=pd.Categorical(table["seed"]),
    )
    fit = smf.ols("value ~ C(arm) + C(seed)", data=data).fit()
    names = [f"C(arm)[T.{arm}]" for arm in others]
    estimates = fit.params[names].to_numpy(float)
    df = int(fit.df_resid)
    if df < 1:
        differences = tuple(
            Difference(arm=arm, difference=float(value), standard_error=None, low=None, high=None,
                       p=None, resolvable=None)
            for arm, value in zip(others, estimates, strict=True)
        )  # fmt: skip
        return BlockedModel(baseline=baseline, level=level, df=0, residual_sd=None, critical=None,
                            means=means, differences=differences)  # fmt: skip
    covariance = fit.cov_params().loc[names, names].to_numpy(float)
    rounding = 1e-12 * float(np.abs(table["value"]).max())
    critical, differences = _intervals(others, estimates, covariance, df, level, rounding)
    return BlockedModel(baseline=baseline, level=level, df=df,
                        residual_sd=float(np.sqrt(fit.mse_resid)), critical=critical,
                        means=means, differences=differences)  # fmt: skip


def linked_arms(table: pd.DataFrame, baseline: str) -> set[str]:
    """The arms that share a seed with the baseline, directly or through other arms."""
    runs = list(zip(table["arm"], table["seed"], strict=True))
    arms, before = {baseline}, set[str]()
    while arms != before:
        before = arms
        seeds = {seed for arm, seed in runs if arm in arms}
        arms = arms | {arm for arm, seed in runs if seed in seeds}
    return arms


def _require_linked(table: pd.DataFrame, others: list[str]) -> None:
    """Arms and seeds can be told apart if they form one connected design: rank arms + seeds - 1."""
    design = pd.get_dummies(table[["arm", "seed"]].astype(str)).to_numpy(float)
    if np.linalg.matrix_rank(design) < design.shape[1] - 1:
        raise ValueError(
            f"arms {', '.join(others)} and the baseline do not share enough seeds to tell an arm "
            "from a seed; expected at least one common seed; run the missing seeds "
            "(`arch-search resume`)"
        )


def _intervals(
    arms: list[str], estimates: Array, covariance: Array, df: int, level: float, rounding: float
) -> tuple[float, tuple[Difference, ...]]:
    errors = np.sqrt(np.diag(covariance))
    if errors.max() <= rounding:  # equal runs: no noise, every difference is exact
        exact = zip(arms, np.where(np.abs(estimates) <= rounding, 0.0, estimates), strict=True)
        return 0.0, tuple(
            Difference(arm=arm, difference=float(d), standard_error=0.0, low=float(d),
                       high=float(d), p=float(d == 0), resolvable=0.0)
            for arm, d in exact
        )  # fmt: skip
    correlation = correlation_of(covariance)
    critical = critical_value(correlation, df, level)
    p = adjusted_p_values(estimates / errors, correlation, df)
    return critical, tuple(
        Difference(
            arm=arm,
            difference=float(estimate),
            standard_error=float(error),
            low=float(estimate - critical * error),
            high=float(estimate + critical * error),
            p=float(np.clip(p_value, 0, 1)),
            resolvable=resolvable(float(error), critical, df),
        )
        for arm, estimate, error, p_value in zip(arms, estimates, errors, p, strict=True)
    )
