"""A report's tables as text: what the HTML, Markdown and LaTeX templates fill in."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from arch_search.budgets import Reading, TokenMultiplier
from arch_search.commands.compare import count_text, interval, number, p_value, rate_cells
from arch_search.compare import Comparison
from arch_search.documents import DocumentDifference
from arch_search.findings import ArmOutcome
from arch_search.measured_speeds import Speeds
from arch_search.metric_names import label
from arch_search.records import Experiment, seconds
from arch_search.statistics.binary import Rate

SPEED, MEMORY = "throughput/tokens_per_second", "memory/peak_gib"


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmRow:
    """An arm's line in the tables, as text."""

    arm: str
    layout: str
    parameters: str
    state: str
    n: str
    mean: str
    mean_interval: str
    difference: str
    difference_interval: str
    p: str
    p_holm: str
    permutation_p: str
    resolvable: str
    verdict: str
    seconds: str
    speed: str
    memory: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ContrastRow:
    """A declared contrast's line. `late`: it was declared after results were there."""

    name: str
    text: str
    value: str
    interval: str
    p: str
    p_holm: str
    permutation_p: str
    p_equivalence: str
    resolvable: str
    verdict: str
    late: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ReachRow:
    """What other budgets and the documents say of an arm."""

    arm: str
    at_equal_flops: str
    at_equal_seconds: str
    multiplier: str
    documents: str
    better_on: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RateContrastRow:
    """A declared contrast of a yes-or-no metric. `late`: declared after results were there."""

    name: str
    of: str
    minus: str
    difference: str
    p: str
    late: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class RateRow:
    """A yes-or-no outcome of an arm."""

    arm: str
    count: str
    interval: str
    p: str
    odds: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedRow:
    """A number that others reported, beside ours."""

    arm: str
    metric: str
    published: str
    ours: str


def arm_row(experiment: Experiment, outcome: ArmOutcome, speeds: Speeds | None) -> ArmRow:
    """An arm's line; its speed is the throughput lane's where there is one."""
    arm = next(arm for arm in experiment.plan.arms if arm.name == outcome.arm)
    runs = [run for run in experiment.of_arm(outcome.arm) if run.result is not None]
    return ArmRow(
        arm=outcome.arm,
        layout=outcome.layout,
        parameters=_count(arm.counts.get("parameters")),
        state=_count(arm.counts.get("state_elements")),
        n=count_text(outcome),
        mean=number(outcome.mean),
        mean_interval=interval(outcome.mean_low, outcome.mean_high),
        difference=number(outcome.difference, signed=True),
        difference_interval=interval(outcome.low, outcome.high, signed=True),
        p=p_value(outcome.p_simultaneous),
        p_holm=p_value(outcome.p_holm),
        permutation_p=p_value(outcome.permutation_p),
        resolvable=number(outcome.resolvable),
        verdict=outcome.verdict,
        seconds=_median([seconds(run) for run in runs], "{:,.0f}"),
        speed=f"{speeds.tokens_per_second[outcome.arm]:,.0f}"
        if speeds
        else _median([run.metrics.get(SPEED) for run in runs], "{:,.0f}"),
        memory=_median([run.metrics.get(MEMORY) for run in runs], "{:.2f}"),
    )


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _median(values: Sequence[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    return form.format(pd.Series(known).median()) if known else "–"


def contrast_rows(experiment: Experiment, comparison: Comparison) -> tuple[ContrastRow, ...]:
    """The declared contrasts, in the order of the file."""
    late = _declared_late(experiment)
    return tuple(
        ContrastRow(
            name=c.name,
            text=c.text,
            value=number(c.value, signed=True),
            interval=interval(c.low, c.high, signed=True),
            p=p_value(c.p_simultaneous),
            p_holm=p_value(c.p_holm),
            permutation_p=p_value(c.permutation_p),
            p_equivalence=p_value(c.p_equivalence),
            resolvable=number(c.resolvable),
            verdict=c.verdict,
            late=f"contrast {c.name}" in late,
        )
        for c in comparison.contrasts
    )


def reach_rows(
    experiment: Experiment,
    readings: Sequence[Reading],
    multipliers: Sequence[TokenMultiplier],
    documents: Sequence[DocumentDifference],
) -> tuple[ReachRow, ...]:
    """One for each arm but the baseline, if anything of it is known."""
    at = {reading.unit: _read(reading) for reading in readings}
    flops, in_seconds = at.get("FLOPs", {}), at.get("seconds", {})
    times, over = {m.arm: m for m in multipliers}, {d.arm: d for d in documents}
    rows = []
    for arm in (a.name for a in experiment.plan.arms if a.name != experiment.baseline.name):
        one, document = times.get(arm), over.get(arm)
        if arm not in flops and arm not in in_seconds and one is None and document is None:
            continue
        rows.append(
            ReachRow(
                arm=arm,
                at_equal_flops=flops.get(arm, "–"),
                at_equal_seconds=in_seconds.get(arm, "–"),
                multiplier=_times(one),
                documents=f"{number(document.value, signed=True)} "
                f"{interval(document.low, document.high, signed=True)}"
                if document
                else "–",
                better_on=f"{document.better} of {document.documents}" if document else "–",
            )
        )
    return tuple(rows)


def _read(reading: Reading) -> dict[str, str]:
    """Each arm's difference, and at which part of its run it was read."""
    return {
        found.name: f"{number(found.value, signed=True)} "
        f"{interval(found.low, found.high, signed=True)} "
        f"at {100 * reading.shares[found.name]:.0f} %"
        for found in reading.model.differences
    }


def rate_rows(rates: Sequence[Rate]) -> tuple[RateRow, ...]:
    """Shares with exact intervals; the odds ratio where the logistic model has one."""
    return tuple(
        RateRow(
            arm=rate.arm,
            count=f"{rate.successes} of {rate.n}",
            interval=f"{100 * rate.low:.0f} to {100 * rate.high:.0f} %",
            p=p_value(rate.p_holm),
            odds="separated" if rate.separated else _odds(rate),
        )
        for rate in rates
    )


def rate_contrast_rows(
    experiment: Experiment, comparison: Comparison
) -> tuple[RateContrastRow, ...]:
    """Declared contrasts of how often: both sides' counts, their difference, Fisher's test."""
    late = _declared_late(experiment)
    return tuple(
        RateContrastRow(name=one.name, of=of, minus=minus, difference=difference,
                        p=p_value(one.p_holm), late=f"contrast {one.name}" in late)
        for one in comparison.rate_contrasts
        for of, minus, difference in [rate_cells(one)]
    )  # fmt: skip


def published_rows(experiment: Experiment) -> tuple[PublishedRow, ...]:
    """What the plan says others reported, and our mean over seeds where we measured the same."""
    published = experiment.plan.published
    return tuple(
        PublishedRow(
            arm=arm,
            metric=label(metric),
            published=f"{value:g}",
            ours=_median([run.metrics.get(metric) for run in experiment.of_arm(arm)], "{:.4f}"),
        )
        for arm, values in (published.values.items() if published else ())
        for metric, value in values.items()
    )


def _declared_late(experiment: Experiment) -> set[str]:
    return {d.what for d in experiment.plan.declarations if d.after_results}


def _times(one: TokenMultiplier | None) -> str:
    if one is None:
        return "–"
    spread = f" [{one.low:.2f}, {one.high:.2f}]" if one.low and one.high else ""
    return f"{one.value:.2f}{spread}" + (" (bound)" if one.bounded else "")


def _odds(rate: Rate) -> str:
    if rate.odds_ratio is None:
        return "–"
    return f"{rate.odds_ratio:.2g} [{rate.odds_low:.2g}, {rate.odds_high:.2g}]"
