"""Outcomes that are yes or no: solved or not, and whether a run came to its end at all."""

import math
from collections.abc import Sequence

import pandas as pd

from arch_search.records import Experiment, RunRecord
from arch_search.statistics.binary import Rate, rates

_YES_OR_NO = ("solved", "found")  # of synthetic tasks, of collapse


def is_yes_or_no(metric: str) -> bool:
    """By its name: `…/solved`. A share of items is none, even where every run reached 0 or 1."""
    return metric.partition(" ")[0].rsplit("/", 1)[-1] in _YES_OR_NO  # options may follow


def solved_rates(experiment: Experiment, metric: str, table: pd.DataFrame) -> tuple[Rate, ...]:
    """How often each arm answered yes. A run that failed did not: it counts as no."""
    counts = {}
    for arm in experiment.plan.arms:
        values = table.loc[table["arm"] == arm.name, "value"]
        failed = sum(has_failed(run, metric) for run in experiment.of_arm(arm.name))
        if len(values) + failed:
            counts[arm.name] = (int((values > 0.5).sum()), len(values) + failed)
    return rates(counts, baseline=experiment.baseline.name)


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
