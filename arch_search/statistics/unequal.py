"""Is one arm noisier than the others? Pooled noise would then flatter it."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from arch_search.statistics.linear import Fit
from arch_search.statistics.permutation import design_matrix
from arch_search.statistics.simultaneous import Array

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
    of_arm = np.array([[a == name for a in fit.runs["arm"]] for name in fit.arms], float)
    design = design_matrix(list(fit.runs["arm"]), list(fit.runs["seed"]), fit.arms)
    keep = np.eye(len(design)) - design @ np.linalg.pinv(design)
    degrees = of_arm @ np.diag(keep)
    drawn = keep @ np.random.default_rng(0).standard_normal((len(design), _DRAWS))
    observed = _shares(fit.runs["residual"].to_numpy(float)[:, None], of_arm, degrees)[:, 0]
    law = _shares(drawn, of_arm, degrees).max(axis=0)
    worst = int(observed.argmax())
    squares = of_arm @ fit.runs["residual"].to_numpy(float) ** 2
    others = (squares.sum() - squares[worst]) / max(degrees.sum() - degrees[worst], 1e-9)
    return NoisiestArm(
        arm=fit.arms[worst],
        ratio=float(np.sqrt(squares[worst] / degrees[worst] / max(others, 1e-300))),
        p=float((1 + (law >= observed[worst]).sum()) / (1 + _DRAWS)),
    )


def _shares(residuals: Array, of_arm: Array, degrees: Array) -> Array:
    """(arms, draws): each arm's residual variance over that of all."""
    squares = of_arm @ residuals**2
    usable = np.where(degrees > 1e-9, degrees, np.inf)[:, None]
    return squares / usable / np.maximum(squares.sum(axis=0), np.finfo(float).tiny)


def paired_interval(
    table: pd.DataFrame, arm: str, baseline: str, *, comparisons: int, level: float = 0.95
) -> tuple[float, float] | None:
    """An arm minus the baseline from their common seeds alone: no noise of other arms in it.

    Holds for so many `comparisons` at once (Bonferroni). None: fewer than two common seeds.
    """
    wide = table.loc[table["arm"].isin([arm, baseline])].pivot(
        index="seed", columns="arm", values="value"
    )
    paired = (wide[arm] - wide[baseline]).dropna().to_numpy(float)
    n = len(paired)
    if n < 2:
        return None
    critical = stats.t.ppf(1 - (1 - level) / (2 * comparisons), n - 1)
    half = float(critical) * float(np.std(paired, ddof=1)) / np.sqrt(n)
    return float(paired.mean()) - half, float(paired.mean()) + half
