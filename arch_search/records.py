"""What an experiment left under the storage root, read for comparison. Writes nothing, no torch."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from arch_search.errors import UsageError
from arch_search.journal import read_curve
from arch_search.later_metrics import later_names
from arch_search.plan_spec import ArmSpec, Plan, PlannedRun
from arch_search.progress import run_state
from arch_search.run_settings import EvaluationSpec
from arch_search.storage import ExperimentFolder, Root, RunFolder
from arch_search.unknown import unknown_experiment


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """One evaluation's outcome: scalars, and tables such as one row a document.

    made: the code, weights, device and versions behind it, as far as they were recorded.
    """

    spec: EvaluationSpec
    metrics: dict[str, float]
    tables: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    convention: str = ""
    made: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """One run as it stands. It has a result once it is trained, whatever is still to evaluate."""

    planned: PlannedRun
    arm: ArmSpec
    folder: RunFolder
    state: str  # FINISHED, FAILED, KILLED, PREEMPTED, LOST, RUNNING or PENDING
    reason: str
    attempts: int
    result: dict[str, Any] | None
    evaluations: tuple[Evaluation, ...]
    later: tuple[Evaluation, ...] = ()  # asked for apart from this experiment's file

    @property
    def metrics(self) -> dict[str, float]:
        """Final numbers. What an evaluation measured stands before training's own estimate."""
        merged = {name: value for one in self.later for name, value in one.metrics.items()}
        merged |= self.result["metrics"] if self.result else {}
        for evaluation in self.evaluations:
            merged |= evaluation.metrics
        return merged


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """A plan and the records of its runs, in the plan's order."""

    plan: Plan
    folder: ExperimentFolder
    runs: tuple[RunRecord, ...]

    @property
    def baseline(self) -> ArmSpec:
        """The arm marked as the baseline, or the first one."""
        return next((arm for arm in self.plan.arms if arm.is_baseline), self.plan.arms[0])

    @property
    def trained(self) -> tuple[RunRecord, ...]:
        """The runs that have a result; an evaluation may still be missing."""
        return tuple(run for run in self.runs if run.result is not None)

    def of_arm(self, arm: str) -> tuple[RunRecord, ...]:
        """The runs of one arm."""
        return tuple(run for run in self.runs if run.arm.name == arm)


def read_experiment(name: str, root: Root | Path | str | None = None) -> Experiment:
    """Read an experiment's plan and everything its runs recorded.

    Raises:
        UsageError: no experiment of this name (the message names the nearest), or a plan or a
            record that cannot be read.
    """
    where = root if isinstance(root, Root) else Root(root)
    folder = where.experiment(name)
    if not (folder.path / "plan.json").is_file():
        raise UsageError(unknown_experiment(where, name))
    plan = folder.plan()
    arms = {arm.name: arm for arm in plan.arms}
    runs = tuple(
        _read_run(planned, arms[planned.arm], where.run(planned.hash), plan)
        for planned in plan.runs
    )
    return Experiment(plan=plan, folder=folder, runs=_named_apart(runs))


def reporting(run: RunRecord, metric: str) -> RunRecord:
    """The run with that later evaluation among its own which reports a metric, if one does."""
    asked = (one for one in run.later if metric in one.metrics)
    return replace(run, evaluations=(*run.evaluations, *asked))


def _named_apart(runs: tuple[RunRecord, ...]) -> tuple[RunRecord, ...]:
    """The runs with later metrics under names that stand for one evaluation each."""
    own = [(one.spec, metric) for run in runs for one in run.evaluations for metric in one.metrics]
    later = [(one.spec, metric) for run in runs for one in run.later for metric in one.metrics]
    names = later_names(own, later)
    return tuple(
        replace(run, later=tuple(
            replace(one, metrics={names[one.spec.hash, k]: v for k, v in one.metrics.items()})
            for one in run.later
        ))
        for run in runs
    )  # fmt: skip


def results(name: str, root: Root | Path | str | None = None) -> pd.DataFrame:
    """One row a run of experiment `name`: arm, factors, seed, how it ended, and what it measured.

    Columns: experiment, arm, baseline, layout, seed, init_seed, data_seed, hash, state, reason,
    attempts, steps, tokens, seconds; `factor/<axis>`; each metric under its own name, later ones
    with their options where another evaluation reports one of that name;
    `count/<name>` (parameters, state_elements, ...); `stream/tokens`, `stream/text`, `code`,
    `environment/<name>`.

    Raises:
        UsageError: no experiment of this name.
    """
    experiment = read_experiment(name, root)
    return pd.DataFrame([_row(experiment, run) for run in experiment.runs])


def curves(experiment: Experiment) -> pd.DataFrame:
    """Logged metrics while training: columns arm, seed, step, tokens, metric, value."""
    rows: list[tuple[Any, ...]] = []
    for run in experiment.runs:
        data = run.planned.spec.data
        for point in read_curve(run.folder):
            tokens = point.step * data.batch * data.sequence_length
            at = (run.arm.name, run.planned.seed, point.step, tokens)
            rows += [(*at, metric, value) for metric, value in point.values.items()]
    return pd.DataFrame(rows, columns=["arm", "seed", "step", "tokens", "metric", "value"])


def curve_metric(curves: pd.DataFrame) -> str:
    """Validation if it was logged often enough to draw a curve, else the training loss."""
    steps = curves.groupby("metric")["step"].nunique()
    for metric in ("val/bits_per_byte", "val/subset_bits_per_byte", "val/subset_accuracy"):
        if int(steps.get(metric, 0) or 0) >= 3:
            return metric
    return "train/loss"


def table(experiment: Experiment, name: str, *, later: bool = False) -> pd.DataFrame:
    """An evaluation's table over all runs, with the columns task, arm and seed before its own.

    Args:
        later: from evaluations that were asked for apart from the experiment's file, too.
    """
    frames = [
        pd.DataFrame(evaluation.tables[name]).assign(
            task=evaluation.spec.task, arm=run.arm.name, seed=run.planned.seed
        )
        for run in experiment.runs
        for evaluation in (*run.evaluations, *(run.later if later else ()))
        if name in evaluation.tables
    ]
    if not frames:
        return pd.DataFrame(columns=["task", "arm", "seed"])
    joined = pd.concat(frames, ignore_index=True)
    first = ["task", "arm", "seed"]
    return joined.reindex(columns=first + [column for column in joined if column not in first])


def _read_run(planned: PlannedRun, arm: ArmSpec, folder: RunFolder, plan: Plan) -> RunRecord:
    state, reason = run_state(folder, plan)
    return RunRecord(
        planned=planned,
        arm=arm,
        folder=folder,
        state=state,
        reason=reason,
        attempts=len(folder.attempts()),
        result=folder.result(),
        evaluations=tuple(_evaluations(folder, plan.evaluations)),
        later=tuple(_later(folder, plan.evaluations)),
    )


def _evaluations(folder: RunFolder, specs: tuple[EvaluationSpec, ...]) -> Iterator[Evaluation]:
    for spec in specs:
        found = folder.evaluation(spec)
        if found is not None:
            yield _evaluation(spec, found)


def _later(folder: RunFolder, planned: tuple[EvaluationSpec, ...]) -> Iterator[Evaluation]:
    hashes = {spec.hash for spec in planned}
    for found in folder.evaluations():
        spec = EvaluationSpec(**found["task"])
        if spec.hash not in hashes:
            yield _evaluation(spec, found)


def _evaluation(spec: EvaluationSpec, found: dict[str, Any]) -> Evaluation:
    return Evaluation(
        spec=spec,
        metrics=found["metrics"],
        tables=found["tables"],
        convention=found.get("convention", ""),
        made=found.get("made", {}),
    )


def _row(experiment: Experiment, run: RunRecord) -> dict[str, Any]:
    spec, result = run.planned.spec, run.result or {}
    stream = result.get("stream", {})
    return {
        "experiment": experiment.plan.name,
        "arm": run.arm.name,
        "baseline": run.arm.name == experiment.baseline.name,
        "layout": run.arm.layout,
        "seed": run.planned.seed,
        "init_seed": spec.init_seed,
        "data_seed": spec.data_seed,
        "hash": run.planned.hash,
        "state": run.state,
        "reason": run.reason,
        "attempts": run.attempts,
        "steps": result.get("steps"),
        "tokens": result.get("tokens"),
        "seconds": seconds(run),
        **{f"factor/{axis}": level for axis, level in run.arm.factors.items()},
        **run.metrics,
        **{f"count/{name}": value for name, value in run.arm.counts.items()},
        "stream/tokens": stream.get("tokens"),
        "stream/text": stream.get("text"),
        "code": spec.code,
        **_flat("environment", result.get("environment", {})),
    }


def seconds(run: RunRecord) -> float | None:
    """Wall time from the start to the end of the attempt that finished."""
    if run.result is None or "started" not in run.result or "ended" not in run.result:
        return None
    return float(run.result["ended"]) - float(run.result["started"])


def _flat(prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, dict)
        flat |= _flat(f"{prefix}/{key}", value) if nested else {f"{prefix}/{key}": value}
    return flat
