"""Compare the arms of an experiment: what differs, how surely, and what could not be seen."""

import difflib
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import pandas as pd

from arch_search.control import Control, check_control
from arch_search.errors import UsageError
from arch_search.findings import ArmOutcome, sentences, verdict
from arch_search.metric_names import direction
from arch_search.records import Experiment, RunRecord, read_experiment
from arch_search.statistics.blocked import BlockedModel, Difference, fit_blocked, linked_arms
from arch_search.statistics.permutation import PermutationCheck, permutation_check
from arch_search.storage import Root


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """All arms on one metric, the baseline first."""

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


def compare(
    name: str, *, metric: str | None = None, root: Root | Path | str | None = None
) -> Comparison:
    """Compare every arm of experiment `name` with its baseline.

    Args:
        metric: a final metric; the experiment's primary one if None.
    Raises:
        UsageError: no such experiment or metric, or the runs are not comparable (`check_control`).
    """
    return compare_experiment(read_experiment(name, root), metric=metric)


def compare_experiment(experiment: Experiment, *, metric: str | None = None) -> Comparison:
    """As `compare`, on records that were read already."""
    metric = metric or experiment.plan.primary.metric
    control = check_control(experiment, experiment.trained)
    table = metric_table(experiment, metric)
    baseline = experiment.baseline.name
    model, permutation = None, None
    if baseline in set(table["arm"]):
        arms = list(linked_arms(table, baseline))
        linked = table.loc[table["arm"].isin(arms), ["arm", "seed", "value"]]
        model = fit_blocked(linked, baseline=baseline)
        if model.df > 0:
            permutation = permutation_check(linked, baseline=baseline)
    share = experiment.plan.primary.smallest_effect
    if metric != experiment.plan.primary.metric:
        share = None  # it was stated for the primary metric alone
    margin = _margin(model, share)
    judge = partial(verdict, better=direction(metric), margin=margin, share=share)
    outcomes = _outcomes(experiment, metric, table, model, permutation, judge)
    return Comparison(
        name=experiment.plan.name,
        question=experiment.plan.question,
        metric=metric,
        smallest_effect=margin,
        smallest_effect_share=share,
        baseline=baseline,
        arms=outcomes,
        model=model,
        permutation=permutation,
        control=control,
        sentences=tuple(sentences(outcomes, model, permutation, baseline, margin, share)),
    )


def comparison_table(comparison: Comparison) -> pd.DataFrame:
    """One row an arm, with the comparison's name and metric: for parquet and pandas."""
    table = pd.DataFrame([asdict(outcome) for outcome in comparison.arms])
    table.insert(0, "experiment", comparison.name)
    table.insert(1, "metric", comparison.metric)
    return table


def metric_table(experiment: Experiment, metric: str) -> pd.DataFrame:
    """Columns arm, seed, value: the finite values of a final metric, arms in the plan's order.

    Raises:
        UsageError: nothing has finished, or no run measured the metric.
    """
    known = sorted({name for run in experiment.trained for name in run.metrics})
    if not known:
        raise UsageError(
            f"no run of {experiment.plan.name!r} has finished yet; see "
            f"`arch-search status {experiment.plan.name}`"
        )
    if metric not in known:
        close = difflib.get_close_matches(metric, known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UsageError(f"no run measured {metric!r}; measured were {', '.join(known)}.{hint}")
    rows = [
        (arm.name, run.planned.seed, float(run.metrics[metric]))
        for arm in experiment.plan.arms
        for run in experiment.of_arm(arm.name)
        if metric in run.metrics and math.isfinite(run.metrics[metric])
    ]
    return pd.DataFrame(rows, columns=["arm", "seed", "value"])


def _margin(model: BlockedModel | None, share: float | None) -> float | None:
    if model is None or share is None:
        return None
    base = next(mean for mean in model.means if mean.arm == model.baseline)
    return share * abs(base.mean)


def _outcomes(
    experiment: Experiment,
    metric: str,
    table: pd.DataFrame,
    model: BlockedModel | None,
    permutation: PermutationCheck | None,
    judge: Callable[[Difference | None], str],
) -> tuple[ArmOutcome, ...]:
    baseline = experiment.baseline.name
    means = {mean.arm: mean for mean in model.means} if model else {}
    differences = {d.arm: d for d in model.differences} if model else {}
    outcomes = []
    for arm in sorted(experiment.plan.arms, key=lambda arm: arm.name != baseline):
        runs = experiment.of_arm(arm.name)
        failed = sum(_failed(run, metric) for run in runs)
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
                difference=difference.difference if difference else None,
                low=difference.low if difference else None,
                high=difference.high if difference else None,
                p=difference.p if difference else None,
                resolvable=difference.resolvable if difference else None,
                permutation_p=permutation.p.get(arm.name) if permutation else None,
                verdict="baseline" if arm.name == baseline else judge(difference),
            )
        )
    return tuple(outcomes)


def _failed(run: RunRecord, metric: str) -> bool:
    if metric in run.metrics:
        return not math.isfinite(run.metrics[metric])
    return run.state == "FAILED"
