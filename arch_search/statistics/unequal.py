"""Is one arm noisier than the others? What concerns it then rests on its own few seeds."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from arch_search.statistics.design import ROUNDING, Array, Design, own_variances, pooled_variance
from arch_search.statistics.linear import Fit

_DRAWS = 4_000


@dataclass(frozen=True, kw_only=True, slots=True)
class NoisiestArm:
    """The arm whose residuals scatter most; p for all arms at once, if noise were equal."""

    arm: str
    ratio: float  # its standard deviation over that of all others
    p: float


def noisiest_arm(fit: Fit) -> NoisiestArm | None:
    """Cochran's test of the largest variance (1941), its law drawn for this very design.

    None: no degree of freedom, two arms (their residuals mirror each other), or no noise at all.
    """
    if fit.df < 1 or len(fit.arms) < 3 or not fit.residual_sd:
        return None
    design = fit.design
    residuals = fit.runs["residual"].to_numpy(float)[:, None]
    noise = np.random.default_rng(0).standard_normal((len(residuals), _DRAWS))
    observed = _relative(design, residuals)[:, 0]
    law = _relative(design, design.residuals @ noise).max(axis=0)
    worst = int(observed.argmax())
    squares = design.of_arm @ residuals[:, 0] ** 2
    left = max(float(design.degrees.sum() - design.degrees[worst]), 1e-9)
    others = (squares.sum() - squares[worst]) / left
    return NoisiestArm(
        arm=fit.arms[worst],
        ratio=float(np.sqrt(squares[worst] / design.degrees[worst] / max(others, 1e-300))),
        p=float((1 + (law >= observed[worst]).sum()) / (1 + _DRAWS)),
    )


def _relative(design: Design, residuals: Array) -> Array:
    """(arms, draws): each arm's variance over the pooled one; 0 where it has none."""
    return np.nan_to_num(own_variances(design, residuals) / pooled_variance(design, residuals))


def paired_interval(
    table: pd.DataFrame, arm: str, baseline: str, *, comparisons: int, level: float = 0.95
) -> tuple[float, float] | None:
    """An arm minus the baseline from their common seeds alone: no noise of other arms in it.

    Holds for so many `comparisons` at once (Bonferroni). None: fewer than two common seeds, or
    equal differences in all of them.
    """
    wide = table.loc[table["arm"].isin([arm, baseline])].pivot(
        index="seed", columns="arm", values="value"
    )
    paired = (wide[arm] - wide[baseline]).dropna().to_numpy(float)
    n = len(paired)
    if n < 2 or np.ptp(paired) <= ROUNDING * float(wide.abs().to_numpy().max()):
        return None
    critical = stats.t.ppf(1 - (1 - level) / (2 * comparisons), n - 1)
    half = float(critical) * float(np.std(paired, ddof=1)) / np.sqrt(n)
    return float(paired.mean()) - half, float(paired.mean()) + half
