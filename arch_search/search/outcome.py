"""What a sweep found: values, limits, the front, and how much its winners lose on a second look.

Free of torch, Ray and Optuna.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from arch_search.search.judge import non_dominated_ranks, ordered
from arch_search.search.trials import Trial
from arch_search.sweep_spec import SweepSpec


def values_of(sweep: SweepSpec, trial: Trial, rung: int) -> tuple[float, ...]:
    """A trial's objectives as they were scored at a rung."""
    return tuple(_number(trial, name, rung) for name in sweep.objectives)


def _number(trial: Trial, name: str, rung: int) -> float:
    if name.startswith("count/"):
        return trial.arm.counts[name.removeprefix("count/")]
    return trial.outcomes[rung].metrics[name]


def minimised(sweep: SweepSpec, values: Sequence[float]) -> tuple[float, ...]:
    """Values turned so that less is better."""
    signs = (1 if way == "minimize" else -1 for way in sweep.objectives.values())
    return tuple(sign * value for sign, value in zip(signs, values, strict=True))


def excess(sweep: SweepSpec, trial: Trial) -> dict[str, float]:
    """By what share a finished trial passes each limit that is known after training."""
    last = len(sweep.rungs) - 1
    after = {n: limit for n, limit in sweep.limits.items() if not n.startswith("count/")}
    return {name: limit.excess(_number(trial, name, last)) for name, limit in after.items()}


def complete(sweep: SweepSpec, trials: Iterable[Trial]) -> list[Trial]:
    """The trials that saw the whole budget and kept within all limits."""
    return [
        trial
        for trial in trials
        if trial.state == "COMPLETE" and all(e <= 0 for e in excess(sweep, trial).values())
    ]


def front(sweep: SweepSpec, trials: Iterable[Trial]) -> list[Trial]:
    """The complete trials that no other beats in everything, by their first objective."""
    full = complete(sweep, trials)
    last = len(sweep.rungs) - 1
    scores = [minimised(sweep, values_of(sweep, trial, last)) for trial in full]
    ranks = non_dominated_ranks(scores)
    best = [(s, t.number, t) for s, t, rank in zip(scores, full, ranks, strict=True) if rank == 0]
    return [trial for _, _, trial in sorted(best, key=lambda one: one[:2])]


def members(sweep: SweepSpec, found: Sequence[Trial]) -> list[Trial]:
    """Whom to look at again: of a long front its ends and what lies widest apart."""
    last = len(sweep.rungs) - 1
    scores = {t.number: minimised(sweep, values_of(sweep, t, last)) for t in found}
    chosen = set(ordered(scores)[: sweep.again.members]) if sweep.again.seeds else set()
    return [trial for trial in found if trial.number in chosen]


@dataclass(frozen=True, kw_only=True, slots=True)
class SecondLook:
    """A member of the front, trained anew from seeds that chose nothing.

    `searched` is the value by which it was chosen; `mean`, `low`, `high` are of the fresh seeds,
    a 95 % t interval; `lost` is how much worse the mean is than what was searched for.
    """

    number: int
    metric: str
    searched: float
    fresh: tuple[float, ...]
    mean: float
    low: float
    high: float
    lost: float


def second_looks(sweep: SweepSpec, trials: Iterable[Trial]) -> list[SecondLook]:
    """One for each member and each objective that training decides."""
    found = []
    last = len(sweep.rungs) - 1
    for trial in trials:
        for name, way in sweep.objectives.items():
            fresh = tuple(
                one.metrics[name] for _, one in sorted(trial.fresh.items()) if name in one.metrics
            )
            if name.startswith("count/") or not fresh or trial.state != "COMPLETE":
                continue
            mean, searched = float(np.mean(fresh)), _number(trial, name, last)
            half = math.nan
            if len(fresh) > 1:
                spread = float(np.std(fresh, ddof=1)) / math.sqrt(len(fresh))
                half = float(stats.t.ppf(0.975, len(fresh) - 1)) * spread
            lost = (mean - searched) * (1 if way == "minimize" else -1)
            found.append(
                SecondLook(number=trial.number, metric=name, searched=searched, fresh=fresh,
                           mean=mean, low=mean - half, high=mean + half, lost=lost)
            )  # fmt: skip
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class RankAgreement:
    """Whether a smaller budget ranks as a larger one: Kendall's tau over trials that saw both.

    `immune` is over those that were never judged: few, but chosen by nothing. The others are those
    that a rung let on, among which the ranks agree less than among all.
    """

    metric: str
    rung: int
    larger: int
    n: int
    tau: float
    n_immune: int
    tau_immune: float


def rank_agreement(sweep: SweepSpec, trials: Sequence[Trial]) -> list[RankAgreement]:
    """For each pair of rungs and each objective that training decides."""
    found = []
    names = [name for name in sweep.objectives if not name.startswith("count/")]
    pairs = [(a, b) for b in range(len(sweep.rungs)) for a in range(b)]
    for name in names:
        for rung, larger in pairs:
            both = [t for t in trials if _scored(t, rung) and _scored(t, larger)]
            immune = [t for t in both if t.immune]
            found.append(
                RankAgreement(metric=name, rung=rung, larger=larger, n=len(both),
                              tau=_tau(both, name, rung, larger), n_immune=len(immune),
                              tau_immune=_tau(immune, name, rung, larger))
            )  # fmt: skip
    return found


def _scored(trial: Trial, rung: int) -> bool:
    return rung in trial.outcomes and not trial.outcomes[rung].failed


def _tau(trials: Sequence[Trial], name: str, rung: int, larger: int) -> float:
    if len(trials) < 3:
        return math.nan
    columns = [[t.outcomes[r].metrics[name] for t in trials] for r in (rung, larger)]
    found: Any = stats.kendalltau(*columns)
    return float(found.statistic)


@dataclass(frozen=True, kw_only=True, slots=True)
class Importance:
    """How much of the scores' variance a parameter explains by itself, over `n` trials that had it.

    Adjusted for the number of its levels (epsilon squared), so that a choice without effect comes
    out near 0 however many levels it has; numbers from a range are cut into four levels.
    """

    parameter: str
    share: float
    n: int
    levels: int


def importances(
    sweep: SweepSpec, trials: Sequence[Trial], metric: str, rung: int = 0
) -> list[Importance]:
    """Of each parameter for an objective, at a rung that all trials reached; largest first.

    The first rung by default: there alone nobody had been pruned, and all had one budget.
    """
    scored = [trial for trial in trials if _scored(trial, rung)]
    names = dict.fromkeys(name for trial in scored for name in trial.params)
    found = []
    for name in names:
        having = [trial for trial in scored if name in trial.params]
        values = np.array([_number(trial, metric, rung) for trial in having])
        levels = _levels([trial.params[name] for trial in having])
        if (one := _explained(values, levels)) is not None:
            found.append(Importance(parameter=name, share=one, n=len(having),
                                    levels=len(set(levels))))  # fmt: skip
    return sorted(found, key=lambda one: -one.share)


def _levels(given: Sequence[Any]) -> list[str]:
    """Levels of a factor; more than eight numbers are cut at their quartiles."""
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in given)
    if not numbers or len(set(given)) <= 8:
        return [str(value) for value in given]
    cuts = np.quantile(np.array(given, dtype=float), [0.25, 0.5, 0.75])
    return [str(int(np.searchsorted(cuts, value))) for value in given]


def _explained(values: np.ndarray, levels: Sequence[str]) -> float | None:
    """Epsilon squared of a one-way layout; None where it cannot be told."""
    groups = [values[[level == one for level in levels]] for one in sorted(set(levels))]
    n, k = len(values), len(groups)
    total = float(((values - values.mean()) ** 2).sum()) if n else 0.0
    if k < 2 or n <= k or total == 0:
        return None
    within = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
    return max(1 - within / (n - k) * (n - 1) / total, 0.0)


def tokens_used(sweep: SweepSpec, trials: Iterable[Trial]) -> int:
    """Tokens that the search trained on, each trunk counted once; the second look left out."""
    return sum(
        trial.steps(sweep) * trial.arm.data.batch * trial.arm.data.sequence_length
        for trial in trials
    )


def tokens_in_full(sweep: SweepSpec, trials: Iterable[Trial]) -> int:
    """Tokens that the same trials would have cost had each seen the whole budget."""
    last = len(sweep.rungs) - 1
    own = (trial for trial in trials if not trial.is_taken)
    return sum(trial.run(sweep, last).spec.train.tokens for trial in own)


def change_in_words(lost: Sequence[float]) -> str:
    """The mean of `SecondLook.lost` as a reader takes it: "0.0179 better" or "0.0032 worse"."""
    mean = sum(lost) / len(lost)
    return f"{abs(mean):.4f} {'worse' if mean > 0 else 'better'}"
