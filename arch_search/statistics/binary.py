"""Yes-or-no outcomes, such as solved or not: exact intervals, an exact test, and a logistic model.

Seeds are not blocks here: with a handful of yes-or-no answers for each seed, a block for each would
use up what the data say.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import statsmodels.api as sm
from scipy import stats
from statsmodels.stats.proportion import confint_proportions_2indep

from arch_search.statistics.simultaneous import holm

Count = tuple[int, int]  # successes, n


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


@dataclass(frozen=True, kw_only=True, slots=True)
class RateDifference:
    """How much more often one side succeeded than the other.

    of, minus: (successes, n).   low, high: of the difference in share, Newcombe's 95 % interval
    (1998, his method 10), for this one alone.   p_holm: Fisher's exact test, adjusted over all that
    were asked.
    """

    name: str
    of: Count
    minus: Count
    value: float
    low: float
    high: float
    p_holm: float


def rate_differences(
    sides: Mapping[str, tuple[Count, Count]], *, level: float = 0.95
) -> tuple[RateDifference, ...]:
    """Name -> two sides, each (successes, n), n at least 1; the first minus the second."""
    adjusted = holm(np.array([fisher(of, minus) for of, minus in sides.values()]))
    found = []
    for (name, (of, minus)), p in zip(sides.items(), adjusted, strict=True):
        low, high = confint_proportions_2indep(
            *of, *minus, method="newcomb", compare="diff", alpha=1 - level
        )
        found.append(
            RateDifference(
                name=name, of=of, minus=minus, value=of[0] / of[1] - minus[0] / minus[1],
                low=float(low), high=float(high), p_holm=float(p),
            )
        )  # fmt: skip
    return tuple(found)


def fisher(one: Count, other: Count) -> float:
    """Fisher's exact test, two-sided."""
    table = [[successes, n - successes] for successes, n in (one, other)]
    return float(np.asarray(stats.fisher_exact(table))[1])


def told_from_never(
    n: int, n_never: int, *, tests: int, level: float = 0.05, power: float = 0.8
) -> float | None:
    """The smallest true share that so many runs tell from a side that never succeeds.

    Args:
        tests: how many the level is shared by (the first step of Holm's adjustment).
    Returns:
        None if even always against never is not told apart.
    """
    enough = next(
        (k for k in range(1, n + 1) if tests * fisher((k, n), (0, n_never)) <= level), None
    )
    return None if enough is None else float(stats.beta.ppf(power, enough, n - enough + 1))


def rates(
    counts: Mapping[str, Count], *, baseline: str | None, level: float = 0.95
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


def _exact_tests(counts: Mapping[str, Count], baseline: str, others: list[str]) -> list[float]:
    if not others:
        return []
    p = [fisher(counts[arm], counts[baseline]) for arm in others]
    return [float(value) for value in holm(np.array(p))]


def _logistic(
    counts: Mapping[str, Count], baseline: str, others: list[str], level: float
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
