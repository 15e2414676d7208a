"""Compare the arms of an experiment: what differs, how surely, and what could not be seen."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import pandas as pd

from arch_search.budgets import Reading
from arch_search.cautions import plan_limits, plan_warnings
from arch_search.control import Control, check_control
from arch_search.errors import UsageError
from arch_search.factorial import FactorTest, factor_sentences, factor_tests
from arch_search.findings import (
    ArmOutcome,
    ContrastOutcome,
    contrast_outcomes,
    contrast_sentences,
    estimable,
    held_up_sentences,
    judged,
    sentences,
    verdict,
)
from arch_search.metric_names import direction, is_yes_or_no
from arch_search.noise_findings import noise_sentences
from arch_search.outcomes import (
    failure_rates,
    failure_sentences,
    has_failed,
    rate_contrasts,
    rate_sentences,
    solved_counts,
)
from arch_search.readings import read_at_equal_cost, reading_sentences
from arch_search.records import Experiment, read_experiment, reporting
from arch_search.speeds import refuse_shared_speed
from arch_search.statistics.binary import Rate, RateDifference, rates
from arch_search.statistics.blocked import BlockedModel, compare_to, linked_arms
from arch_search.statistics.linear import Estimate, Fit, fit_arms
from arch_search.statistics.permutation import PermutationCheck, permutation_check
from arch_search.statistics.unequal import NoisiestArm, noisiest_arm
from arch_search.storage import Root
from blocks.options import did_you_mean


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """All arms on one metric, the baseline first.

    Two families stand apart: the declared contrasts, and every arm against the baseline. For a
    yes-or-no metric there is no linear model: `rates` and `rate_contrasts` hold what is known.

    readings: the same runs at equal FLOPs and equal seconds, where arms differ in them;
    no_seconds: why there is none of the latter.   cautions: what the plan warned of.   limits: what
    it said is equal in all arms and bounds what they can show.
    """

    name: str
    question: str
    metric: str
    smallest_effect: float | None  # in the metric's unit
    smallest_effect_share: float | None
    baseline: str
    arms: tuple[ArmOutcome, ...]
    model: BlockedModel | None
    permutation: PermutationCheck | None
    control: Control
    sentences: tuple[str, ...]  # what this could and could not resolve
    contrasts: tuple[ContrastOutcome, ...] = ()
    factors: tuple[FactorTest, ...] = ()
    noisiest: NoisiestArm | None = None
    rates: tuple[Rate, ...] = ()
    rate_contrasts: tuple[RateDifference, ...] = ()
    failures: tuple[Rate, ...] = ()  # empty if no run failed
    readings: tuple[Reading, ...] = ()
    no_seconds: str = ""
    cautions: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Analysis:
    """What the linear model says; empty where there is none."""

    fit: Fit | None = None
    model: BlockedModel | None = None
    permutation: PermutationCheck | None = None
    contrasts: tuple[ContrastOutcome, ...] = ()
    factors: tuple[FactorTest, ...] = ()
    noisiest: NoisiestArm | None = None
    margin: float | None = None


def compare(
    name: str, *, metric: str | None = None, root: Root | Path | str | None = None
) -> Comparison:
    """Compare every arm of experiment `name` with its baseline, and answer its contrasts.

    Args:
        metric: a final metric; the experiment's primary one if None.
    Raises:
        UsageError: no such experiment or metric, or the runs are not comparable (`check_control`).
    """
    return compare_experiment(read_experiment(name, root), metric=metric)


def compare_experiment(experiment: Experiment, *, metric: str | None = None) -> Comparison:
    """As `compare`, on records that were read already."""
    metric = metric or experiment.plan.primary.metric
    refuse_shared_speed(metric, experiment.trained)
    control = check_control(experiment, [reporting(run, metric) for run in experiment.trained])
    table = metric_table(experiment, metric)
    baseline = experiment.baseline.name
    share = experiment.plan.primary.smallest_effect
    if metric != experiment.plan.primary.metric:
        share = None  # it was stated for the primary metric alone
    yes_or_no = is_yes_or_no(metric)
    found = _Analysis() if yes_or_no else _analyse(experiment, table, share)
    judge = partial(
        verdict,
        better=direction(metric),
        margin=found.margin,
        share=share,
        no_noise=found.model.no_noise if found.model else "",
    )
    outcomes = _outcomes(experiment, metric, table, found, judge)
    counts = solved_counts(experiment, metric, table) if yes_or_no else {}
    solved = rates(counts, baseline=baseline)
    failures = failure_rates(experiment, metric)
    readings, no_seconds = read_at_equal_cost(experiment)
    contrasted: tuple[RateDifference, ...] = ()
    if yes_or_no:
        contrasted, untested = rate_contrasts(experiment.plan.contrasts, counts)
        outcomes = tuple(replace(o, verdict="") for o in outcomes)
        said = (
            *rate_sentences(solved, metric.rsplit("/", 1)[-1]),
            *untested,
            *failure_sentences(failures),
        )
    else:
        said = (
            *contrast_sentences(found.contrasts),
            *held_up_sentences(experiment.plan.name, experiment.plan.contrasts, outcomes),
            *sentences(outcomes, found.model, found.permutation, baseline, found.margin, share),
            *failure_sentences(failures),
            *factor_sentences(found.factors),
            *noise_sentences(found.noisiest, table, baseline, len(outcomes) - 1),
            *(_read_otherwise(experiment, outcomes, readings) if direction(metric) < 0 else ()),
        )
    return Comparison(
        name=experiment.plan.name,
        question=experiment.plan.question,
        metric=metric,
        smallest_effect=found.margin,
        smallest_effect_share=share,
        baseline=baseline,
        arms=outcomes,
        model=found.model,
        permutation=found.permutation,
        control=control,
        sentences=said,
        contrasts=found.contrasts,
        factors=found.factors,
        noisiest=found.noisiest,
        rates=solved,
        rate_contrasts=contrasted,
        failures=failures,
        readings=readings,
        no_seconds=no_seconds,
        cautions=plan_warnings(experiment.plan),
        limits=plan_limits(experiment.plan),
    )


def comparison_table(comparison: Comparison) -> pd.DataFrame:
    """One row an arm and one a declared contrast: for parquet and pandas.

    Column `kind` is 'arm' or 'contrast'; a contrast's estimate stands under `difference`.
    """
    arms = pd.DataFrame([{"kind": "arm", **asdict(outcome)} for outcome in comparison.arms])
    contrasts = pd.DataFrame([{"kind": "contrast", **asdict(c)} for c in comparison.contrasts])
    contrasts = contrasts.rename(columns={"value": "difference", "name": "contrast"})
    table = pd.concat([arms, contrasts], ignore_index=True) if len(contrasts) else arms
    table.insert(0, "experiment", comparison.name)
    table.insert(1, "metric", comparison.metric)
    return table


def metric_table(experiment: Experiment, metric: str) -> pd.DataFrame:
    """Columns arm, seed, value: the finite values of a final metric, arms in the plan's order.

    Raises:
        UsageError: nothing has finished, or no run measured the metric.
    """
    known = known_metrics(experiment)
    if not known:
        failed = sum(run.state == "FAILED" for run in experiment.runs)
        said = f", {failed} of {len(experiment.runs)} failed" if failed else ""
        raise UsageError(
            f"no run of {experiment.plan.name!r} has finished{said}; see "
            f"`arch-search status {experiment.plan.name}`"
        )
    if metric not in known:
        hint = did_you_mean(metric, known)
        raise UsageError(f"no run measured {metric!r}; measured were {', '.join(known)}.{hint}")
    rows = [
        (arm.name, run.planned.seed, float(run.metrics[metric]))
        for arm in experiment.plan.arms
        for run in experiment.of_arm(arm.name)
        if metric in run.metrics and math.isfinite(run.metrics[metric])
    ]
    return pd.DataFrame(rows, columns=["arm", "seed", "value"])


def known_metrics(experiment: Experiment) -> list[str]:
    """Every final metric that some run measured, sorted."""
    return sorted({name for run in experiment.trained for name in run.metrics})


def linked_fit(experiment: Experiment, table: pd.DataFrame) -> Fit | None:
    """The linear model over the arms that share seeds; None if the baseline has no run."""
    baseline = experiment.baseline.name
    if baseline not in set(table["arm"]):
        return None
    linked = table["arm"].isin(list(linked_arms(table, baseline)))
    return fit_arms(table.loc[linked, ["arm", "seed", "value"]], first=baseline)


def _analyse(experiment: Experiment, table: pd.DataFrame, share: float | None) -> _Analysis:
    fit = linked_fit(experiment, table)
    if fit is None:
        return _Analysis()
    plan, baseline = experiment.plan, experiment.baseline.name
    margin = None
    if share is not None:
        margin = share * abs(float(table.loc[table["arm"] == baseline, "value"].mean()))
    contrasts = contrast_outcomes(plan.contrasts, fit, margin=margin, share=share)
    permutation = None
    if fit.df > 0:
        permutation = permutation_check(fit.runs, baseline=baseline)
        contrasts = _permuted(experiment, fit, contrasts)
    return _Analysis(
        fit=fit,
        model=compare_to(fit, margin=margin),
        permutation=permutation,
        contrasts=contrasts,
        factors=factor_tests(plan.arms, fit),
        noisiest=noisiest_arm(fit),
        margin=margin,
    )


def _read_otherwise(
    experiment: Experiment, outcomes: tuple[ArmOutcome, ...], readings: tuple[Reading, ...]
) -> Iterator[str]:
    schedules = [arm.train.schedule for arm in experiment.plan.arms]
    return reading_sentences(outcomes, readings, schedules)


def _permuted(
    experiment: Experiment, fit: Fit, outcomes: tuple[ContrastOutcome, ...]
) -> tuple[ContrastOutcome, ...]:
    weights = estimable(experiment.plan.contrasts, fit.arms)
    if not weights:
        return outcomes
    check = permutation_check(fit.runs, baseline=fit.arms[0], contrasts=weights)
    return tuple(replace(o, permutation_p=check.p.get(o.name)) for o in outcomes)


def _outcomes(
    experiment: Experiment,
    metric: str,
    table: pd.DataFrame,
    found: _Analysis,
    judge: Callable[[Estimate | None], str],
) -> tuple[ArmOutcome, ...]:
    baseline = experiment.baseline.name
    means = {mean.arm: mean for mean in found.model.means} if found.model else {}
    differences = {d.name: d for d in found.model.differences} if found.model else {}
    outcomes = []
    for arm in sorted(experiment.plan.arms, key=lambda arm: arm.name != baseline):
        runs = experiment.of_arm(arm.name)
        failed = sum(has_failed(run, metric) for run in runs)
        values = table.loc[table["arm"] == arm.name, "value"]
        mean, difference = means.get(arm.name), differences.get(arm.name)
        outcomes.append(
            ArmOutcome(
                arm=arm.name,
                layout=arm.layout,
                planned=len(runs),
                n=len(values),
                failed=failed,
                unfinished=len(runs) - failed - len(values),
                mean=float(values.mean()) if len(values) else None,
                sd=mean.sd if mean else None,
                mean_low=mean.low if mean else None,
                mean_high=mean.high if mean else None,
                difference=difference.value if difference else None,
                **judged(difference),
                permutation_p=found.permutation.p.get(arm.name) if found.permutation else None,
                verdict="baseline" if arm.name == baseline else judge(difference),
            )
        )
    return tuple(outcomes)
