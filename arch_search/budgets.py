"""The same runs read at equal FLOPs or seconds, and as token multipliers. Equal tokens is the base.

A run that is read before its end is not a shorter run: its learning rate had not come down yet, and
it stands worse than a run planned for that length would. So arms that are cut short look worse than
they are, and multipliers lie nearer to 1 than the truth.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from arch_search.measured_speeds import Speeds
from arch_search.records import Experiment, curve_metric, curves
from arch_search.spec import ScheduleSpec
from arch_search.statistics.blocked import BlockedModel, fit_blocked, linked_arms
from arch_search.statistics.design import ROUNDING, Array
from arch_search.wording import percentage

_FLOPS = "forward_flops_per_token"
NO_CURVE = "validation was logged at fewer than three steps (log.validate_every)"
_EQUAL = 0.001  # a share; arms this close in cost need no second reading
_TRAINING = 3  # a backward pass counts as two forward ones


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """Every arm at the cost that the cheapest one took in all.

    unit: FLOPs or seconds.   metric: that of the curves which were read.
    shares: at which part of its run each arm is read.   model: every arm against the baseline.
    source: where the cost comes from, in words.
    """

    unit: str
    budget: float
    metric: str
    shares: dict[str, float]
    model: BlockedModel
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenMultiplier:
    """How many times the arm's tokens the baseline needs to come equally far; over 1 favours it.

    A geometric mean over `n` seeds, each against the baseline's run of its seed; interval t on the
    logarithm, for this arm alone; None for one seed or equal ones. `bounded`: for so many seeds the
    curve was not logged early enough, and the first logged step stands in.
    """

    arm: str
    n: int
    value: float
    low: float | None
    high: float | None
    bounded: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """A finished run's logged values; `tokens` ascends, and values are better the lower."""

    tokens: Array
    values: Array

    def read_at(self, tokens: float) -> float:
        """The value at so many tokens, straight over log tokens; NaN outside what was logged."""
        at = np.log(self.tokens)
        return float(np.interp(np.log(tokens), at, self.values, left=np.nan, right=np.nan))

    def reached_at(self, value: float) -> float:
        """The tokens at which the curve first comes down to a value; NaN if it never does."""
        at, lowest = np.log(self.tokens), np.minimum.accumulate(self.values)
        below = np.flatnonzero(lowest <= value)
        if not len(below):
            return float("nan")
        i = int(below[0])
        if i == 0:
            return float(self.tokens[0])
        share = (lowest[i - 1] - value) / (lowest[i - 1] - lowest[i])
        return float(np.exp(at[i - 1] + share * (at[i] - at[i - 1])))


def equal_flops(experiment: Experiment) -> Reading | None:
    """Read all runs where the cheapest arm ended, off their validation curves.

    None: FLOPs are equal, or `NO_CURVE`. A training loss will not do: at another step it is of
    another text, which moved it by more than the arms differed.
    """
    cost = {
        arm.name: _TRAINING * arm.counts[_FLOPS]
        for arm in experiment.plan.arms
        if arm.counts.get(_FLOPS)
    }
    return _at_equal_cost(experiment, cost, "FLOPs", "counted, forward and backward")


def equal_seconds(experiment: Experiment, speeds: Speeds) -> Reading | None:
    """The same at equal seconds of training, by the throughput lane's speeds."""
    cost = {arm: 1 / speed for arm, speed in speeds.tokens_per_second.items()}
    source = f"{speeds.source}; each speed known to ±{percentage(speeds.uncertain)} %"
    return _at_equal_cost(experiment, cost, "seconds", source)


def _at_equal_cost(
    experiment: Experiment, cost: Mapping[str, float], unit: str, source: str
) -> Reading | None:
    """Args:
    cost: of a token, in each arm.
    """
    if not _differ(cost.values()):
        return None
    metric, logged = _finished_curves(experiment)
    if not metric.startswith("val/"):
        return None
    ends = {arm: float(curve.tokens[-1]) for (arm, _), curve in logged.items() if arm in cost}
    baseline = experiment.baseline.name
    totals = {arm: cost[arm] * end for arm, end in ends.items()}
    if baseline not in totals or not _differ(totals.values()):
        return None
    budget = min(totals.values())
    rows = [
        (arm, seed, curve.read_at(budget / cost[arm] * (1 - 1e-12)))
        for (arm, seed), curve in logged.items()
        if arm in totals
    ]
    table = pd.DataFrame(rows, columns=["arm", "seed", "value"]).dropna()
    if baseline not in set(table["arm"]):
        return None
    table = table.loc[table["arm"].isin(list(linked_arms(table, baseline)))]
    return Reading(
        unit=unit,
        budget=budget,
        metric=metric,
        shares={arm: budget / total for arm, total in totals.items()},
        model=fit_blocked(table, baseline=baseline),
        source=source,
    )


def _differ(costs: Collection[float]) -> bool:
    return len(costs) > 1 and max(costs) / min(costs) - 1 >= _EQUAL


def token_multipliers(experiment: Experiment) -> tuple[TokenMultiplier, ...]:
    """One for each arm that shares a finished seed with the baseline and logged a curve."""
    _, logged = _finished_curves(experiment)
    baseline = experiment.baseline.name
    found = []
    for arm in (a.name for a in experiment.plan.arms if a.name != baseline):
        seeds = [seed for name, seed in logged if name == arm and (baseline, seed) in logged]
        each = [_multiplier(logged[arm, seed], logged[baseline, seed]) for seed in seeds]
        if each:
            found.append(_mean_multiplier(arm, each))
    return tuple(found)


def schedule_sentence(schedules: Sequence[ScheduleSpec]) -> str:
    """What reading before the end means under these schedules."""
    if all(schedule.name == "constant" for schedule in schedules):
        return "The learning rate is constant, so a run read early is a shorter run."
    names = ", ".join(sorted({schedule.name for schedule in schedules}))
    return (
        f"Under this schedule ({names}) a run read before its end is not a shorter run: its "
        "learning rate had not come down. What is cut short looks worse than a run of that length, "
        "and multipliers lie nearer to 1 than the truth."
    )


def _finished_curves(experiment: Experiment) -> tuple[str, dict[tuple[str, int], Curve]]:
    """The metric that was logged for curves, and the curve of each finished (arm, seed)."""
    logged = curves(experiment)
    if logged.empty:
        return "", {}
    metric = curve_metric(logged)
    logged = logged.loc[logged["metric"] == metric]
    found = {}
    for run in experiment.trained:
        here = (logged["arm"] == run.arm.name) & (logged["seed"] == run.planned.seed)
        points = logged.loc[here]
        if len(points):
            found[run.arm.name, run.planned.seed] = Curve(
                tokens=points["tokens"].to_numpy(float), values=points["value"].to_numpy(float)
            )
    return metric, found


def _multiplier(arm: Curve, base: Curve) -> tuple[float, bool]:
    """The multiplier of one seed, and whether the curve began too late to know it."""
    ahead = arm.values[-1] <= base.values[-1]
    leader, follower = (arm, base) if ahead else (base, arm)
    at = leader.reached_at(float(follower.values[-1]))
    saved = float(follower.tokens[-1]) / at
    return (saved if ahead else 1 / saved), at <= float(leader.tokens[0])


def _mean_multiplier(arm: str, each: Sequence[tuple[float, bool]]) -> TokenMultiplier:
    logs = np.log([value for value, _ in each])
    n, mean = len(logs), float(np.mean(logs))
    half = None
    if n > 1 and np.ptp(logs) > ROUNDING:
        half = float(stats.t.ppf(0.975, n - 1) * np.std(logs, ddof=1) / np.sqrt(n))
    return TokenMultiplier(
        arm=arm,
        n=n,
        value=float(np.exp(mean)),
        low=None if half is None else float(np.exp(mean - half)),
        high=None if half is None else float(np.exp(mean + half)),
        bounded=sum(bounded for _, bounded in each),
    )
