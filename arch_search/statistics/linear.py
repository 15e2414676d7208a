"""The one linear model: value = arm + seed + noise, and what its contrasts say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import statsmodels.formula.api as smf

from arch_search.statistics.design import (
    ROUNDING,
    Array,
    Design,
    arm_variances,
    design_of,
    variance_shares,
)
from arch_search.statistics.simultaneous import Law, holm, law_on

Weights = Mapping[str, float]

ONE_SEED = "one seed cannot tell a difference from noise"
EQUAL_SEEDS = "the seeds are equal, so noise cannot be estimated"
EQUAL_DIFFERENCES = "every seed shows the same differences, so noise cannot be estimated"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Least squares over all arms. `df` 0: the noise cannot be estimated, and `no_noise` says why:
    no degree of freedom is left, or what is left shows no noise, as discrete scores often do.

    effects: (arms,), each minus the first arm.   covariance: (arms, arms) of the effects with the
    pooled variance, as in an analysis of variance; NaN without degrees of freedom.
    variances: (arms,), the larger of the pooled variance and the arm's own, which intervals use.
    runs: the table with the columns `fitted` and `residual`.
    """

    arms: tuple[str, ...]
    effects: Array
    covariance: Array
    df: int
    residual_sd: float | None
    runs: pd.DataFrame
    design: Design
    variances: Array
    no_noise: str = ""

    def standard_errors(self, weights: Array) -> Array:
        """(contrasts,), of contrasts with weights (contrasts, arms)."""
        return np.sqrt(variance_shares(self.design, weights) @ self.variances)


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A contrast of the arms' means; `low` to `high` hold for all contrasts of its family at once.

    p_simultaneous: adjusted in one step from the law of the largest |t|, so that it agrees with the
    interval. p_holm: by Holm's procedure. p_equivalence: of two one-sided tests against a margin
    (Schuirmann, 1987), Holm's too. resolvable: the true value found with 80 % power at this noise.
    """

    name: str
    value: float
    standard_error: float | None = None
    low: float | None = None
    high: float | None = None
    p_simultaneous: float | None = None
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
    no_noise = _no_noise(table, fit.df_resid, fit.mse_resid) if len(arms) > 1 else ONE_SEED
    df = 0 if no_noise else int(fit.df_resid)
    names = [f"C(arm)[T.{arm}]" for arm in arms[1:]]
    effects, covariance = np.zeros(len(arms)), np.full((len(arms), len(arms)), np.nan)
    effects[1:] = fit.params[names]
    if df > 0:
        covariance[:] = 0
        covariance[1:, 1:] = fit.cov_params().loc[names, names]
    design = design_of(list(table["arm"]), list(table["seed"]), arms)
    residual = fit.resid.to_numpy(float)
    return Fit(
        arms=tuple(arms),
        effects=effects,
        covariance=covariance,
        df=df,
        residual_sd=float(np.sqrt(fit.mse_resid)) if df > 0 else None,
        runs=table.assign(fitted=fit.fittedvalues, residual=fit.resid),
        design=design,
        variances=arm_variances(design, residual[:, None])[:, 0],
        no_noise=no_noise,
    )


def _no_noise(table: pd.DataFrame, df: float, mean_square: float) -> str:
    """Why residuals of so many degrees of freedom do not tell the noise; empty if they do."""
    if df < 1:
        return ONE_SEED
    smallest = ROUNDING * float(np.abs(table["value"].to_numpy(float)).max())
    if np.sqrt(mean_square) > smallest:
        return ""
    within = max(float(np.ptp(list(runs["value"]))) for _, runs in table.groupby("arm"))
    return EQUAL_SEEDS if within <= smallest else EQUAL_DIFFERENCES


def weight_matrix(arms: Sequence[str], contrasts: Mapping[str, Weights]) -> Array:
    """(contrasts, arms). Raises ValueError for weights that do not sum to zero."""
    for name, weights in contrasts.items():
        if abs(sum(weights.values())) > 1e-9 * max(map(abs, weights.values()), default=1):
            raise ValueError(
                f"the weights of contrast {name!r} sum to {sum(weights.values()):.3g}, expected 0"
            )
    rows = [[weights.get(arm, 0.0) for arm in arms] for weights in contrasts.values()]
    return np.array(rows, float)


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
    errors = fit.standard_errors(weights)
    law = law_on(fit.design, weights)
    return _judged(named, errors, law, level, margin)


def half_widths_alone(fit: Fit, weights: Array, *, level: float = 0.95) -> Array:
    """(contrasts,): half of each contrast's interval by itself; NaN without degrees of freedom."""
    if fit.df < 1:
        return np.full(len(weights), np.nan)
    moving = np.abs(weights).max(axis=1) > 0  # an arm minus itself has no law
    half = np.zeros(len(weights))
    if moving.any():
        law = law_on(fit.design, weights[moving])
        half[moving] = law.critical_alone(level) * fit.standard_errors(weights[moving])
    return half


def _judged(
    named: Sequence[Estimate],
    errors: Array,
    law: Law,
    level: float,
    margin: float | None,
) -> Family:
    """The estimates with all that the law of their |t| says of them."""
    critical = law.critical(level)
    values = np.array([one.value for one in named])
    together = law.p_together(values / errors)
    stepped = holm(law.p_alone(values / errors))
    same = holm(law.p_beyond((margin - np.abs(values)) / errors)) if margin else None
    visible = errors * law.resolvable(level)
    return Family(
        critical=critical,
        estimates=tuple(
            replace(
                one,
                standard_error=float(error),
                low=float(one.value - critical * error),
                high=float(one.value + critical * error),
                p_simultaneous=float(together[i]),
                p_holm=float(stepped[i]),
                p_equivalence=float(same[i]) if same is not None else None,
                resolvable=float(visible[i]),
            )
            for i, (one, error) in enumerate(zip(named, errors, strict=True))
        ),
    )


def _require_linked(table: pd.DataFrame, others: list[str]) -> None:
    """Arms and seeds can be told apart if they form one connected design: rank arms + seeds - 1."""
    design = pd.get_dummies(table[["arm", "seed"]].astype(str)).to_numpy(float)
    if np.linalg.matrix_rank(design) < design.shape[1] - 1:
        raise ValueError(
            f"arms {', '.join(others)} and the baseline do not share enough seeds to tell an arm "
            "from a seed; expected at least one common seed; run the missing seeds "
            "(`arch-search resume`)"
        )
