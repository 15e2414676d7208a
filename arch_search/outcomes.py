"""Outcomes that are yes or no: solved or not, and whether a run came to its end at all."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from arch_search.noise import against_baseline
from arch_search.plan_spec import ContrastSpec, Plan
from arch_search.records import Experiment, RunRecord
from arch_search.statistics.binary import (
    Count,
    Rate,
    RateDifference,
    rate_differences,
    rates,
    told_from_never,
)
from arch_search.wording import counted, listed


def rate_contrasts(
    contrasts: Sequence[ContrastSpec], counts: Mapping[str, Count]
) -> tuple[tuple[RateDifference, ...], tuple[str, ...]]:
    """The declared contrasts between two sides of arms, their runs counted together.

    Args:
        counts: as `solved_counts`.
    Returns:
        what was found, and a sentence on those that are no such question or have no run yet.
    """
    asked = {contrast.name: two_sides(contrast) for contrast in contrasts}
    sides = {
        name: (_together(counts, of), _together(counts, minus))
        for name, (of, minus) in asked.items()
        if of and all(arm in counts for arm in (*of, *minus))
    }
    left = [name for name in asked if name not in sides]
    said = (
        f"Not tested: {listed(left)}; a yes-or-no metric answers the mean of some arms against "
        "the mean of others, once all of them have runs",
    )
    return rate_differences(sides), said if left else ()


def rate_resolution(plan: Plan) -> str:
    """What a plan whose primary metric is yes or no can tell, in a sentence or two."""
    asked = plan.contrasts or against_baseline(plan.arms)
    sides = {contrast.name: two_sides(contrast) for contrast in asked}
    tested = {name: (len(of), len(minus)) for name, (of, minus) in sides.items() if of}
    seeds = len({run.seed for run in plan.runs})
    said = f"{plan.primary.metric} is yes or no."
    if tested:
        what = counted(len(tested), "contrast" if plan.contrasts else "arm")
        said += f" Found with 80 % power at 5 % (Fisher's exact test, Holm over {what}):"
    for of, minus in dict.fromkeys(tested.values()):
        least = told_from_never(of * seeds, minus * seeds, tests=len(tested))
        said += f" {listed(name for name, arms in tested.items() if arms == (of, minus))}: "
        said += (
            f"nothing with {counted(seeds, 'seed')}, not even never against always."
            if least is None
            else f"never against {100 * least:.0f} % of the runs."
        )
    untested = [name for name in sides if name not in tested]
    return said + (f" Not tested: {listed(untested)}." if untested else "")


def two_sides(contrast: ContrastSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The arms on either side of a contrast that weighs those of a side alike; else empty."""
    of = {arm: weight for arm, weight in contrast.weights.items() if weight > 0}
    minus = {arm: weight for arm, weight in contrast.weights.items() if weight < 0}
    alike = all(math.isclose(abs(w), 1 / len(side)) for side in (of, minus) for w in side.values())
    return (tuple(of), tuple(minus)) if alike else ((), ())


def _together(counts: Mapping[str, Count], arms: Sequence[str]) -> Count:
    return sum(counts[arm][0] for arm in arms), sum(counts[arm][1] for arm in arms)


def solved_counts(experiment: Experiment, metric: str, table: pd.DataFrame) -> dict[str, Count]:
    """Arm -> how many of its runs answered yes, of how many that ended.

    A run that failed did not answer yes.
    """
    counts = {}
    for arm in experiment.plan.arms:
        values = table.loc[table["arm"] == arm.name, "value"]
        failed = sum(has_failed(run, metric) for run in experiment.of_arm(arm.name))
        if len(values) + failed:
            counts[arm.name] = (int((values > 0.5).sum()), len(values) + failed)
    return counts


def failure_rates(experiment: Experiment, metric: str) -> tuple[Rate, ...]:
    """How often each arm's runs failed, of those that ended; nothing if none did."""
    counts = {}
    for arm in experiment.plan.arms:
        runs = experiment.of_arm(arm.name)
        failed = sum(has_failed(run, metric) for run in runs)
        ended = failed + sum(math.isfinite(run.metrics.get(metric, math.nan)) for run in runs)
        if ended:
            counts[arm.name] = (failed, ended)
    if not any(failed for failed, _ in counts.values()):
        return ()
    return rates(counts, baseline=experiment.baseline.name)


def failure_sentences(found: Sequence[Rate]) -> tuple[str, ...]:
    """How surely arms fail more or less often, where any run failed."""
    if not found:
        return ()
    said = ", ".join(
        f"{rate.arm} {rate.successes} of {rate.n} ({100 * rate.low:.0f} to {100 * rate.high:.0f} %"
        + (f", p = {rate.p_holm:.2g}" if rate.p_holm is not None else "")
        + ")"
        for rate in found
    )
    return (f"How often runs failed, with exact 95 % and Fisher's p against the baseline: {said}.",)


def has_failed(run: RunRecord, metric: str) -> bool:
    """Whether the run says something against its arm: it broke, or its metric is not finite."""
    if metric in run.metrics:
        return not math.isfinite(run.metrics[metric])
    return run.state == "FAILED"


def rate_sentences(found: Sequence[Rate], what: str) -> tuple[str, ...]:
    """Each arm's share with its exact interval, and what can be said against the baseline."""
    said = [
        f"{rate.arm}: {what} in {rate.successes} of {rate.n} runs "
        f"({100 * rate.low:.0f} to {100 * rate.high:.0f} %, exact 95 %)"
        + (f"; p = {rate.p_holm:.2g} against the baseline" if rate.p_holm is not None else "")
        + "."
        for rate in found
    ]
    if separated := [rate.arm for rate in found if rate.separated]:
        said.append(
            f"No odds ratio for {', '.join(separated)}: one side is always or never {what}, so the "
            "logistic model has no finite estimate; the exact intervals and test stand."
        )
    return tuple(said)
