"""Pushes an experiment to MLflow. Pushing twice changes nothing, so any push may be cut off.

A run is found again by its tags, a value by its step: a metric has one value a step, stamped with
the time that the journal gives it. Flat runs, because MLflow charts nested ones as empty.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Experiment, Metric, Param, RunTag, ViewType

from arch_search.journal import Point, read_curve
from arch_search.plan_spec import Plan, PlannedRun
from arch_search.progress import run_state
from arch_search.records import read_experiment
from arch_search.storage import AttemptFolder, Root, RunFolder
from arch_search.tracking.describe import final_metrics, first_tags, last_tags, parameters
from arch_search.tracking.later import TAG, push_later
from arch_search.tracking.server import is_server, prepare

BATCH = 1_000  # MLflow's own limit on metrics in one request
TERMINAL = {"FINISHED": "FINISHED", "FAILED": "FAILED", "KILLED": "KILLED"}


@dataclass(kw_only=True, slots=True)
class _Mirrored:
    """What MLflow has of one run, as far as this process knows."""

    run_id: str
    status: str
    started: int  # when its first attempt did, in MLflow's milliseconds
    steps: dict[str, int] = field(default_factory=dict)  # last step pushed, by metric
    is_new: bool = False  # made by this process: MLflow has nothing that we do not know of
    complete: bool = False  # pushed as finished, with all its evaluations: it stays so
    seen: tuple[int, int] = (0, 0)  # attempts and the journal's size at the last push
    closed: tuple[str, str] = ("", "")  # how it ended, after how many attempts
    later: str = ""  # the hash of the later evaluations that it has


class Mirror:
    """An experiment in MLflow. Every method may raise whatever MLflow raises in an outage."""

    def __init__(self, root: Root, plan: Plan, uri: str) -> None:
        """Make the database if need be, then find or make the experiment and its runs' ids."""
        prepare(uri)
        self._root, self._plan = root, plan
        self._client = MlflowClient(tracking_uri=uri)
        self._experiment_id = self._find_experiment(uri)
        self._runs: dict[str, _Mirrored] = {}
        self._summary = ""
        self._find_runs()

    def follow(self, plan: Plan) -> None:
        """Take up the runs that a sweep has added."""
        self._plan = plan

    def push(self, *, driver_lives: bool) -> None:
        """Bring MLflow up to what the root says now.

        Args:
            driver_lives: somebody will go on with what is lost; otherwise such a run is KILLED.
        """
        for planned in self._plan.runs:
            self._push_run(planned, driver_lives=driver_lives)

    def push_later(self) -> None:
        """Add what was evaluated apart from the plan to the runs that MLflow shows as ended."""
        for run in read_experiment(self._plan.name, self._root).trained:
            known = self._runs.get(run.planned.hash)
            if run.later and known is not None and known.status != "RUNNING":
                known.later = push_later(self._client, known.run_id, run, known.later)

    def summarise(self) -> None:
        """The one run that stands for the experiment: its plan, and how many runs ended how."""
        summary = self._summary_run()
        ended = Counter(run_state(self._root.run(p.hash), self._plan)[0] for p in self._plan.runs)
        tags = [RunTag(f"runs/{kind.lower()}", str(count)) for kind, count in ended.items()]
        self._client.log_batch(summary, tags=tags, synchronous=True)
        plan = self._root.experiment(self._plan.name).path / "plan.json"
        self._client.log_artifact(summary, str(plan))
        unfinished = ended.total() - ended["FINISHED"]
        self._client.set_terminated(summary, "FAILED" if unfinished else "FINISHED")

    def attach(self, paths: Iterable[Path], headline: dict[str, float]) -> None:
        """Give the summary run files (a report) and headline numbers."""
        summary = self._summary_run()
        for path in paths:
            self._client.log_artifact(summary, str(path), "report")
        now = int(time.time() * 1000)
        metrics = []
        for key, value in headline.items():
            before = self._client.get_metric_history(summary, key)
            if not before or before[-1].value != value:
                metrics.append(Metric(key, value, now, len(before)))
        self._client.log_batch(summary, metrics=metrics, synchronous=True)

    def ids(self) -> dict[str, str]:
        """MLflow's run id by run hash."""
        return {run_hash: known.run_id for run_hash, known in self._runs.items()}

    def open_runs(self) -> list[str]:
        """The hashes of the runs that MLflow shows as RUNNING."""
        return sorted(h for h, known in self._runs.items() if known.status == "RUNNING")

    @property
    def experiment_id(self) -> str:
        return self._experiment_id

    def _find_experiment(self, uri: str) -> str:
        name = self._plan.name
        found: Experiment | None = self._client.get_experiment_by_name(name)
        if found is None:
            folder = self._root.path / "mlartifacts" / name  # a database has no place for files
            where = None if is_server(uri) else folder.as_uri()
            tags = {"question": self._plan.question[:4_000]}
            return self._client.create_experiment(name, artifact_location=where, tags=tags)
        if found.lifecycle_stage == "deleted":
            self._client.restore_experiment(found.experiment_id)
        return found.experiment_id

    def _find_runs(self) -> None:
        """Take up the runs of this root that MLflow has, so that none is ever made twice."""
        token: str | None = ""
        while token is not None:
            page = self._client.search_runs(
                [self._experiment_id],
                f"tags.`arch_search.root` = '{self._root.identity}'",
                run_view_type=ViewType.ACTIVE_ONLY,
                page_token=token or None,
            )
            for found in page:
                tags, info = found.data.tags, found.info
                if tags.get("arch_search.kind") == "summary":
                    self._summary = info.run_id
                    continue
                closed = (tags.get("ended", ""), tags.get("attempts", ""))
                known = _Mirrored(
                    run_id=info.run_id,
                    status=info.status,
                    started=info.start_time,
                    closed=closed,
                    later=tags.get(TAG, ""),
                )
                self._runs.setdefault(tags.get("arch_search.run", ""), known)
            token = page.token

    def _push_run(self, planned: PlannedRun, *, driver_lives: bool) -> None:
        mirrored = self._runs.get(planned.hash)
        if mirrored is not None and mirrored.complete:
            return
        run = self._root.run(planned.hash)
        attempts = run.attempts()
        if not attempts:
            return
        if mirrored is not None and mirrored.started < _started(attempts):
            self._client.delete_run(mirrored.run_id)  # its folder was deleted, and it began anew
            mirrored = None
        state, reason = run_state(run, self._plan)
        goes_on = state == "RUNNING" or driver_lives
        status = TERMINAL.get(state) or ("RUNNING" if goes_on else "KILLED")
        known = mirrored or self._make(planned, run)
        if status == "RUNNING":
            self._follow(run, attempts, known)
            return
        tags = last_tags(run, state, reason)
        closed = (tags["ended"], tags["attempts"])
        if (known.status, known.closed) != (status, closed):
            self._close(planned, run, known, tags)
            self._client.set_terminated(known.run_id, status, end_time=_ended(attempts))
            known.status, known.closed = status, closed
        known.complete = status == "FINISHED"

    def _follow(
        self, run: RunFolder, attempts: tuple[AttemptFolder, ...], known: _Mirrored
    ) -> None:
        if known.status != "RUNNING":
            self._client.update_run(known.run_id, status="RUNNING")
            known.status = "RUNNING"
        journal = attempts[-1].journal
        seen = (len(attempts), journal.stat().st_size if journal.exists() else 0)
        if seen != known.seen:
            self._push_points(known, read_curve(run))
            known.seen = seen

    def _make(self, planned: PlannedRun, run: RunFolder) -> _Mirrored:
        started = _started(run.attempts())
        made = self._client.create_run(
            self._experiment_id,
            start_time=started,
            tags=first_tags(self._root, self._plan, planned),
            run_name=f"{self._plan.name}/{planned.arm}/{planned.seed}",
        )
        known = _Mirrored(run_id=made.info.run_id, status="RUNNING", started=started, is_new=True)
        self._runs[planned.hash] = known
        params = [Param(k, v) for k, v in parameters(self._plan, planned).items()]
        self._client.log_batch(known.run_id, params=params, synchronous=True)
        self._client.log_artifact(known.run_id, str(run.path / "spec.json"))
        return known

    def _push_points(self, known: _Mirrored, points: tuple[Point, ...]) -> None:
        self._learn_steps(known, {key for point in points for key in point.values})
        for batch in _batches(known, points):
            self._client.log_batch(known.run_id, metrics=batch, synchronous=True)
            known.steps |= {metric.key: metric.step for metric in batch}

    def _learn_steps(self, known: _Mirrored, keys: set[str]) -> None:
        """Ask MLflow how far it has each of these metrics, the first time each is met."""
        for key in keys - known.steps.keys():
            history = [] if known.is_new else self._client.get_metric_history(known.run_id, key)
            known.steps[key] = max((m.step for m in history), default=-1)

    def _close(
        self, planned: PlannedRun, run: RunFolder, known: _Mirrored, tags: dict[str, str]
    ) -> None:
        points = read_curve(run)
        self._push_points(known, points)
        if run.is_complete(self._plan.evaluations):
            final = _final_point(final_metrics(self._plan, run), points, planned, run)
            self._push_points(known, final)
            self._client.log_artifact(known.run_id, str(run.path / "result.json"))
            for evaluation in self._plan.evaluations:
                file = run.path / "evaluations" / f"{evaluation.hash}.json"
                self._client.log_artifact(known.run_id, str(file), f"evaluations/{evaluation.task}")
        entities = [RunTag(k, v) for k, v in tags.items()]
        self._client.log_batch(known.run_id, tags=entities, synchronous=True)

    def _summary_run(self) -> str:
        if not self._summary:
            tags = {
                "arch_search.root": self._root.identity,
                "arch_search.kind": "summary",
                "study": self._plan.name,
            }
            made = self._client.create_run(
                self._experiment_id, tags=tags, run_name=f"{self._plan.name} (summary)"
            )
            self._summary = made.info.run_id
        return self._summary


def _batches(known: _Mirrored, points: Iterable[Point]) -> Iterator[list[Metric]]:
    """The values that MLflow lacks, in whole steps, at most BATCH of them at a time."""
    batch: list[Metric] = []
    for point in points:
        stamp = int(point.time * 1000)
        new = [
            Metric(key, value, stamp, point.step)
            for key, value in point.values.items()
            if point.step > known.steps[key]
        ]
        if len(batch) + len(new) > BATCH and batch:
            yield batch
            batch = []
        batch += new
    if batch:
        yield batch


def _final_point(
    final: dict[str, float], points: tuple[Point, ...], planned: PlannedRun, run: RunFolder
) -> tuple[Point, ...]:
    """Final numbers at the last step, or one behind it where the curve has a value there."""
    stamp, last = _ended(run.attempts()) / 1000, planned.spec.steps
    taken = {key for point in points if point.step >= last for key in point.values}
    here = {key: value for key, value in final.items() if key not in taken}
    behind = {key: value for key, value in final.items() if key in taken}
    return (
        Point(step=last, time=stamp, values=here),
        Point(step=last + 1, time=stamp, values=behind),
    )


def _started(attempts: tuple[AttemptFolder, ...]) -> int:
    """When the first attempt began, in MLflow's milliseconds."""
    return int(attempts[0].lease()["claimed"] * 1000)


def _ended(attempts: tuple[AttemptFolder, ...]) -> int:
    """When the last attempt ended, in MLflow's milliseconds."""
    return int((attempts[-1].end() or {}).get("time", time.time()) * 1000)
