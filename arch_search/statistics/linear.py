"""The one linear model: value = arm + seed + noise, and what its contrasts say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import statsmodels.formula.api as smf
from scipy import stats

from arch_search.statistics.equivalence import two_one_sided
from arch_search.statistics.simultaneous import (
    Array,
    adjusted_p_values,
    correlation_of,
    critical_value,
    holm,
    resolvable,
)

Weights = Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Least squares over all arms. `df` 0: nothing is left to estimate the noise with.

    effects: (arms,), each minus the first arm.   covariance: (arms, arms) of the effects; NaN
    without degrees of freedom.   runs: the table with the columns `fitted` and `residual`.
    """

    arms: tuple[str, ...]
    effects: Array
    covariance: Array
    df: int
    residual_sd: float | None
    runs: pd.DataFrame


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A contrast of the arms' means; `low` to `high` hold for all contrasts of its family at once.

    p: adjusted in one step from the law of the largest |t|, so that it agrees with the interval.
    p_holm: by Holm's procedure. p_equivalence: of two one-sided tests against a margin, Holm's too.
    resolvable: the true value found with 80 % power at this noise.
    """

    name: str
    value: float
    standard_error: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    p_equivalence: float | None = None
    resolvable: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Estimates that are judged together. `critical` is None if nothing could be estimated."""

    critical: float | None
    estimates: tuple[Estimate, ...]


def fit_arms(table: pd.DataFrame, *, first: str) -> Fit:
    """Fit value ~ arm + seed by least squares. Seeds are blocks: what they do to all arms cancels.

    Args:
        table: columns `arm`, `seed`, `value` (finite), one row a run. A missing (arm, seed) is
            allowed; effects then rest on the seeds that the model can link.
        first: the arm that effects are taken against; their contrasts do not depend on it.
    Raises:
        ValueError: `first` has no run, or seeds and arms cannot be told apart.
    """
    arms = list(dict.fromkeys(table["arm"]))
    if first not in arms:
        raise ValueError(f"the baseline {first!r} has no finished run to compare with")
    arms = [first, *(arm for arm in arms if arm != first)]
    _require_linked(table, arms[1:])
    data = table.assign(arm=pd.Categorical(table["arm"], arms), seed=pd.Categorical(table["seed"]))
    formula = "value ~ C(arm) + C(seed)" if len(arms) > 1 else "value ~ C(seed)"
    fit = smf.ols(formula, data=data).fit()
    df = int(fit.df_resid) if len(arms) > 1 else 0
    names = [f"C(arm)[T.{arm}]" for arm in arms[1:]]
    effects, covariance = np.zeros(len(arms)), np.full((len(arms), len(arms)), np.nan)
    effects[1:] = fit.params[names]
    if df > 0:
        covariance[:] = 0
        covariance[1:, 1:] = fit.cov_params().loc[names, names]
    return Fit(
        arms=tuple(arms),
        effects=effects,
        covariance=covariance,
        df=df,
        residual_sd=float(np.sqrt(fit.mse_resid)) if df > 0 else None,
        runs=table.assign(fitted=fit.fittedvalues, residual=fit.resid),
    )


def weight_matrix(arms: Sequence[str], contrasts: Mapping[str, Weights]) -> Array:
    """(contrasts, arms). Raises ValueError for weights that do not sum to zero."""
    for name, weights in contrasts.items():
        if abs(sum(weights.values())) > 1e-9 * max(map(abs, weights.values()), default=1):
            raise ValueError(
                f"the weights of contrast {name!r} sum to {sum(weights.values()):.3g}, expected 0"
            )
    return np.array([[weights.get(arm, 0.0) for arm in arms] for weights in contrasts.values()])


def estimate(
    fit: Fit,
    contrasts: Mapping[str, Weights],
    *,
    level: float = 0.95,
    margin: float | None = None,
) -> Family:
    """Estimate contrasts, all in one family.

    Args:
        margin: the smallest value that would matter; equivalence is tested against it.
    """
    if not contrasts:
        return Family(critical=None, estimates=())
    weights = weight_matrix(fit.arms, contrasts)
    values = weights @ fit.effects
    named = [Estimate(name=name, value=float(v)) for name, v in zip(contrasts, values, strict=True)]
    if fit.df < 1:
        return Family(critical=None, estimates=tuple(named))
    covariance = weights @ fit.covariance @ weights.T
    errors = np.sqrt(np.maximum(np.diag(covariance), 0))
    scale = 1e-12 * float(np.abs(fit.runs["value"]).max())
    if errors.max() <= scale:  # equal runs: no noise, every difference is exact
        return Family(critical=0.0, estimates=tuple(_exact(e, scale, margin) for e in named))
    correlation = correlation_of(covariance)
    critical = critical_value(correlation, fit.df, level)
    single = adjusted_p_values(values / errors, correlation, fit.df)
    stepped = holm(2 * stats.t.sf(np.abs(values / errors), fit.df))
    same = holm(two_one_sided(values, errors, fit.df, margin)) if margin else None
    return Family(
        critical=critical,
        estimates=tuple(
            replace(
                e,
                standard_error=float(error),
                low=float(e.value - critical * error),
                high=float(e.value + critical * error),
                p=float(np.clip(single[i], 0, 1)),
                p_holm=float(stepped[i]),
                p_equivalence=float(same[i]) if same is not None else None,
                resolvable=resolvable(float(error), critical, fit.df),
            )
            for i, (e, error) in enumerate(zip(named, errors, strict=True))
        ),
    )


def _exact(one: Estimate, rounding: float, margin: float | None) -> Estimate:
    value = 0.0 if abs(one.value) <= rounding else one.value
    p = float(value == 0)
    within = None if margin is None else float(abs(value) >= margin)
    return replace(one, value=value, standard_error=0.0, low=value, high=value, p=p, p_holm=p,
                   p_equivalence=within, resolvable=0.0)  # fmt: skip


def _require_linked(table: pd.DataFrame, others: list[str]) -> None:
    """Arms and seeds can be told apart if they form one connected design: rank arms + seeds - 1."""
    design = pd.get_dummies(table[["arm", "seed"]].astype(str)).to_numpy(float)
    if np.linalg.matrix_rank(design) < design.shape[1] - 1:
        raise ValueError(
            f"arms {', '.join(others)} and the baseline do not share enough seeds to tell an arm "
            "from a seed; expected at least one common seed; run the missing seeds "
            "(`arch-search resume`)"
        )
