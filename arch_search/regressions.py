"""Every metric that was measured, arm by arm, so that a good mean cannot hide what got worse."""

from collections.abc import Iterator
from dataclasses import dataclass

from arch_search.compare import known_metrics, linked_fit, metric_table
from arch_search.metric_names import direction, is_yes_or_no, label
from arch_search.records import Experiment
from arch_search.statistics.blocked import compare_to
from arch_search.wording import percent

_NOT_TASKS = ("train/", "throughput/", "memory/", "val/subset_")
_SAME = ("val/byte_perplexity", "val/token_perplexity", "val/word_perplexity")  # as bits per byte


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricEffect:
    """An arm minus the baseline on one metric, as a share of the baseline's mean.

    The interval holds for all arms on this metric, not over metrics: a regression must not be
    missed because many tasks were measured. finding: better, worse or open.
    """

    arm: str
    metric: str
    share: float
    low: float
    high: float
    finding: str


def metric_effects(experiment: Experiment) -> tuple[MetricEffect, ...]:
    """All metrics that say which way is better, the primary one first. Yes-or-no ones have none."""
    primary = experiment.plan.primary.metric
    metrics = [m for m in known_metrics(experiment) if not m.startswith((*_NOT_TASKS, *_SAME))]
    effects: list[MetricEffect] = []
    for metric in sorted(metrics, key=lambda name: (name != primary, name)):
        better = direction(metric)
        if not better or is_yes_or_no(metric):
            continue
        fit = linked_fit(experiment, metric_table(experiment, metric))
        if fit is None or fit.df < 1:
            continue
        model = compare_to(fit)
        base = abs(next(mean.mean for mean in model.means if mean.arm == model.baseline))
        for found in model.differences:
            if not base or found.low is None or found.high is None:
                continue
            sign = (found.low > 0) - (found.high < 0)
            effects.append(
                MetricEffect(
                    arm=found.name,
                    metric=metric,
                    share=found.value / base,
                    low=found.low / base,
                    high=found.high / base,
                    finding={0: "open", better: "better", -better: "worse"}[sign],
                )
            )
    return tuple(effects)


def regression_sentences(effects: tuple[MetricEffect, ...], primary: str) -> Iterator[str]:
    """Where an arm got worse; most of all one that is not worse on the primary metric."""
    worse = [e for e in effects if e.finding == "worse" and e.metric != primary]
    main = {e.arm: e.finding for e in effects if e.metric == primary}
    for arm in dict.fromkeys(e.arm for e in worse):
        listed = ", ".join(f"{label(e.metric)} ({percent(e.share)})" for e in worse if e.arm == arm)
        besides = f", though better on {label(primary)}" if main.get(arm) == "better" else ""
        yield f"Regression in {arm}: {listed}{besides}."
