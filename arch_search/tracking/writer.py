"""The one writer: a thread of the driver that mirrors the journals. MLflow never holds up a run."""

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING

from arch_search.plan_spec import Plan
from arch_search.redaction import hide_secrets
from arch_search.storage import ExperimentFolder, Root
from arch_search.tracking.server import reason, tracking_address
from arch_search.tracking.wandb_sink import WandbWriter

if TYPE_CHECKING:
    from arch_search.tracking.mirror import Mirror

PUSH_SECONDS = 2.0
RECONCILE_SECONDS = 15.0
OUTAGE_SECONDS = 15.0  # between two tries while MLflow does not answer

log = logging.getLogger(__name__)


class Writer(threading.Thread):
    """Pushes what is durable every few seconds; through an outage it keeps trying."""

    def __init__(self, root: Root, plan: Plan) -> None:
        super().__init__(name="tracking", daemon=True)
        self._closing = threading.Event()
        self._pushing = Pushes(root, plan)
        self._wandb = WandbWriter(root, plan)

    def run(self) -> None:
        self._wandb.start()
        while not self._closing.is_set():
            failed = self._pushing.try_push(driver_lives=True)
            self._closing.wait(OUTAGE_SECONDS if failed else PUSH_SECONDS)
        while self._pushing.try_push(driver_lives=False, ending=True):
            self._closing.clear()
            self._closing.wait(PUSH_SECONDS)

    def close(self, seconds: float) -> str:
        """Push the rest, for so long at most; returns why MLflow is behind, empty if it is not."""
        self._closing.set()
        self._wandb.closing.set()
        deadline = time.monotonic() + seconds
        self.join(seconds)
        self._wandb.join(max(deadline - time.monotonic(), 0))
        behind = (self._pushing.failure or "it is slow") if self.is_alive() else ""
        if self.is_alive():
            self._pushing.note(behind)
        return behind


class Pushes:
    """Tries to push, remembers why it failed, and says in tracking.json what MLflow has."""

    def __init__(self, root: Root, plan: Plan) -> None:
        self._root, self._plan = root, plan
        self._folder: ExperimentFolder = root.experiment(plan.name)
        self._mirror: Mirror | None = None
        self.failure = ""

    def try_push(self, *, driver_lives: bool, ending: bool = False) -> str:
        """Push once; returns why it failed, empty if it did not."""
        try:
            self._push(driver_lives=driver_lives, ending=ending)
        except Exception as error:  # whatever MLflow, a database or the network raises
            failure = reason(error)
            if not self.failure:
                log.warning("MLflow does not take the metrics, they wait: %s", failure)
            self._mirror = None  # what it took before it failed is asked for again
            self.failure = failure
            with contextlib.suppress(OSError):
                self.note(failure)
            return failure
        if self.failure:
            log.info("MLflow answers again and has caught up")
        self.failure = ""
        return ""

    def note(self, behind: str) -> None:
        """Keep the ids of what MLflow has, and how it is behind, for readers without MLflow."""
        said = self._folder.read("tracking.json") | {"behind": behind}
        if self._mirror is not None:
            said |= {
                "uri": hide_secrets(tracking_address(self._root, self._plan.tracking_uri)),
                "experiment_id": self._mirror.experiment_id,
                "runs": self._mirror.ids(),
                "open": self._mirror.open_runs(),
            }
        if said != self._folder.read("tracking.json"):
            self._folder.write("tracking.json", said)

    def _push(self, *, driver_lives: bool, ending: bool) -> None:
        if self._mirror is None:
            from arch_search.tracking.mirror import Mirror  # seconds of imports, off the main path

            uri = tracking_address(self._root, self._plan.tracking_uri)
            self._mirror = Mirror(self._root, self._plan, uri)
        if self._plan.sweep is not None:
            self._mirror.follow(self._folder.plan())
        self._mirror.push(driver_lives=driver_lives)
        if ending:
            self._mirror.push_later()
            self._mirror.summarise()
        self.note("")


def reconcile(root: Root, plan: Plan) -> None:
    """Make MLflow say what the root says, for a driver that died; waits a few seconds at most."""
    push = Pushes(root, plan).try_push
    thread = threading.Thread(
        target=push, kwargs={"driver_lives": False, "ending": True}, daemon=True
    )
    thread.start()
    thread.join(RECONCILE_SECONDS)


def rebuild(root: Root, name: str, uri: str = "") -> None:
    """Bring an MLflow, empty or not, to what the root holds of an experiment.

    Args:
        uri: where to; the plan's own address if empty.
    """
    from arch_search.tracking.mirror import Mirror

    plan = root.experiment(name).plan()
    mirror = Mirror(root, plan, tracking_address(root, uri or plan.tracking_uri))
    mirror.push(driver_lives=False)
    mirror.push_later()
    mirror.summarise()
