"""Yes-or-no outcomes, such as solved or not: exact intervals, an exact test, and a logistic model.

Seeds are not blocks here: with a handful of yes-or-no answers for each seed, a block for each would
use up what the data say.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import statsmodels.api as sm
from scipy import stats

from arch_search.statistics.simultaneous import holm


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """How often an arm succeeded, with an exact 95 % interval (Clopper and Pearson, 1934).

    p_holm: Fisher's exact test against the baseline, adjusted over the arms; None for the baseline.
    odds_ratio: against the baseline, with Wald's interval for this arm alone; None where one of the
    two succeeded always or never (separation): the likelihood then has no maximum.
    """

    arm: str
    successes: int
    n: int
    rate: float
    low: float
    high: float
    p_holm: float | None = None
    odds_ratio: float | None = None
    odds_low: float | None = None
    odds_high: float | None = None
    separated: bool = False


def rates(
    counts: Mapping[str, tuple[int, int]], *, baseline: str | None, level: float = 0.95
) -> tuple[Rate, ...]:
    """Each arm's rate, and each arm against the baseline.

    Args:
        counts: arm -> (successes, n), n at least 1.
        baseline: None to compare nothing.
    """
    others = [arm for arm in counts if arm != baseline] if baseline in counts else []
    p = dict(zip(others, _exact_tests(counts, str(baseline), others), strict=True))
    odds = _logistic(counts, str(baseline), others, level)
    found = []
    for arm, (successes, n) in counts.items():
        interval = stats.binomtest(successes, n).proportion_ci(level, method="exact")
        ratio, low, high = odds.get(arm, (None, None, None))
        found.append(
            Rate(
                arm=arm,
                successes=successes,
                n=n,
                rate=successes / n,
                low=float(interval.low),
                high=float(interval.high),
                p_holm=p.get(arm),
                odds_ratio=ratio,
                odds_low=low,
                odds_high=high,
                separated=arm in others and arm not in odds,
            )
        )
    return tuple(found)


def _exact_tests(
    counts: Mapping[str, tuple[int, int]], baseline: str, others: list[str]
) -> list[float]:
    if not others:
        return []
    base, n = counts[baseline]
    tables = [[[counts[a][0], counts[a][1] - counts[a][0]], [base, n - base]] for a in others]
    p = [float(np.asarray(stats.fisher_exact(table))[1]) for table in tables]
    return [float(value) for value in holm(np.array(p))]


def _logistic(
    counts: Mapping[str, tuple[int, int]], baseline: str, others: list[str], level: float
) -> dict[str, tuple[float, float, float]]:
    """Odds ratio to the baseline and its interval, for the arms that are not separated from it."""
    if not others or _extreme(*counts[baseline]):
        return {}
    arms = [arm for arm in others if not _extreme(*counts[arm])]
    if not arms:
        return {}
    compared = [baseline, *arms]
    answers = np.concatenate([np.arange(counts[a][1]) < counts[a][0] for a in compared])
    of_arm = np.repeat(np.arange(len(compared)), [counts[a][1] for a in compared])
    design = (of_arm[:, None] == np.arange(len(compared))).astype(float)
    design[:, 0] = 1.0  # the baseline's log odds
    fit = sm.Logit(answers.astype(float), design).fit(disp=False)
    ratios = np.exp(np.column_stack([fit.params, fit.conf_int(1 - level)]))
    return {
        arm: (float(row[0]), float(row[1]), float(row[2]))
        for arm, row in zip(arms, ratios[1:], strict=True)
    }


def _extreme(successes: int, n: int) -> bool:
    return successes in (0, n)
