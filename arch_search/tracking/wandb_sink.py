"""Weights & Biases beside MLflow, fed by the same journals: the only place that knows wandb.

A run goes there whole, once, when it has ended for good; so nothing is shown that a resumption
takes back. WANDB_MODE=offline writes folders that `wandb sync` sends later.
"""

import logging
import threading
from importlib.util import find_spec
from typing import Any

from arch_search.errors import UsageError
from arch_search.extras import how_to_install
from arch_search.journal import Point, read_curve
from arch_search.plan_spec import Plan, PlannedRun
from arch_search.progress import run_state
from arch_search.redaction import hide_secrets
from arch_search.storage import Root
from arch_search.tracking.describe import final_metrics, first_tags, last_tags, parameters

SENT = "wandb.json"
LOOK_SECONDS = 5.0

log = logging.getLogger(__name__)


def require_wandb() -> None:
    """Raise UsageError, before anything runs, if wandb is asked for and not installed."""
    if find_spec("wandb") is None:
        raise UsageError(
            "tracking.wandb: the package wandb is not installed; leave tracking.wandb out, or "
            f"{how_to_install('wandb')}"
        )


class WandbWriter(threading.Thread):
    """Sends what has ended, in a thread of its own: an outage there must not hold up MLflow."""

    def __init__(self, root: Root, plan: Plan) -> None:
        super().__init__(name="wandb", daemon=True)
        self._sink = WandbSink(root, plan)
        self.closing = threading.Event()

    def run(self) -> None:
        while not self.closing.wait(LOOK_SECONDS):
            self._sink.try_push()
        self._sink.try_push()


class WandbSink:
    """Sends the ended runs of an experiment. What has been sent is listed in wandb.json."""

    def __init__(self, root: Root, plan: Plan) -> None:
        self._root, self._plan = root, plan
        self._folder = root.experiment(plan.name)
        self._failed = ""

    def try_push(self) -> None:
        """Send what has ended since; an outage is logged and caught up by a later call."""
        if not self._plan.wandb_project:
            return
        try:
            for planned in self._unsent():
                self._send(planned)
        except Exception as error:  # whatever wandb or the network raises
            failed = hide_secrets(f"{type(error).__name__}: {error}".splitlines()[0])
            if failed != self._failed:
                log.warning("W&B does not take the runs, they wait: %s", failed)
            self._failed = failed

    def _unsent(self) -> list[PlannedRun]:
        sent = self._folder.read(SENT)
        return [p for p in self._plan.runs if p.hash not in sent and self._has_ended(p)]

    def _has_ended(self, planned: PlannedRun) -> bool:
        run = self._root.run(planned.hash)
        if run.is_complete(self._plan.evaluations):
            return True
        attempts = run.attempts()
        return bool(attempts) and bool((attempts[-1].end() or {}).get("final"))

    def _send(self, planned: PlannedRun) -> None:
        run = self._root.run(planned.hash)
        state, reason = run_state(run, self._plan)
        sent = self._start(planned)
        try:
            for point in read_curve(run):
                _log(sent, point)
            if run.result() is not None:
                sent.summary.update(final_metrics(self._plan, run))
            tags = first_tags(self._root, self._plan, planned) | last_tags(run, state, reason)
            sent.summary.update({f"about/{key}": value for key, value in tags.items()})
        finally:
            sent.finish(exit_code=0 if state == "FINISHED" else 1)
        self._folder.write(SENT, {**self._folder.read(SENT), planned.hash: sent.id})

    def _start(self, planned: PlannedRun) -> Any:
        import wandb

        entity, _, project = self._plan.wandb_project.rpartition("/")
        place = self._root.path / "wandb"
        place.mkdir(exist_ok=True)
        quiet = wandb.Settings(
            silent=True,
            console="off",  # the driver's own output is not the run's
            disable_git=True,
            disable_code=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
        )
        return wandb.init(
            entity=entity or None,
            project=project,
            id=f"{planned.hash}-{self._root.identity[:8]}",
            resume="allow",  # a driver that was killed while sending goes on with the same run
            name=f"{self._plan.name}/{planned.arm}/{planned.seed}",
            group=self._plan.name,
            job_type=planned.arm,
            config=parameters(self._plan, planned),
            dir=str(place),
            settings=quiet,
        )


def _log(sent: Any, point: Point) -> None:
    if point.step >= sent.starting_step:
        sent.log(point.values, step=point.step)
