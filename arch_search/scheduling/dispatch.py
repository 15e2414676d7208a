"""Which run to start next, and what to do when one ends: no run's failure harms another."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from arch_search.attempt import Attempt
from arch_search.lease import is_live, last_step
from arch_search.plan_spec import Plan, PlannedRun
from arch_search.run_settings import ResourceSpec
from arch_search.scheduling.session import Session
from arch_search.scheduling.watchdog import Watchdog
from arch_search.storage import ExperimentFolder, Root, RunFolder

MAX_DEATHS = 3  # workers that may die one after the other without a new checkpoint
GRACE_SECONDS = 60.0

log = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class _Deaths:
    """How often a run's worker died since its checkpoints last advanced."""

    count: int = 0
    furthest: int = 0
    not_before: float = 0.0


class Supply(Protocol):
    """Decides what runs as results come in: a sweep."""

    def due(self, is_over: Callable[[PlannedRun], bool], room: int) -> Sequence[PlannedRun]:
        """The runs that should be in the air now; those that are over have been taken in."""
        ...


@dataclass(kw_only=True)
class Dispatcher:
    """Keeps up to `limit` runs in the air until none is left to start.

    They are the plan's, or what `supply` asks for.
    """

    root: Root
    folder: ExperimentFolder
    plan: Plan
    session: Session
    execute: str
    since: float  # when this driver was launched (unix seconds); a failure after it is not retried
    limit: int = 0  # 0: as many as the cluster holds
    grace: float = GRACE_SECONDS  # what a run gets to stop by itself
    supply: Supply | None = None
    _flying: dict[Any, PlannedRun] = field(default_factory=dict)
    _deaths: dict[str, _Deaths] = field(default_factory=dict)
    _over: set[str] = field(default_factory=set)  # what is over stays so while this driver lives
    _stalled: dict[str, str] = field(default_factory=dict)  # why we killed a run's worker
    _micro_batch: dict[str, int] = field(default_factory=dict)  # after a worker ran out of memory
    _watchdog: Watchdog = field(init=False)
    _stop_asked: float = 0.0
    _cancelled: bool = False

    def __post_init__(self) -> None:
        self._watchdog = Watchdog(stall_seconds=self.plan.resources.stall_seconds)

    @property
    def is_stopping(self) -> bool:
        return self._stop_asked > 0

    def tick(self, seconds: float = 1.0) -> bool:
        """Start what can start, take in what ended. False when nothing is left to do."""
        if not self._stop_asked and self.folder.stop.exists():
            log.info("asked to stop: waiting for %d runs", len(self._flying))
            self._stop_asked = time.monotonic()
        left = [] if self.is_stopping else self._left()
        self._launch(left)
        if not left and not self._flying:
            return False
        for reference in self.session.wait(list(self._flying), seconds=seconds):
            self._take_in(self._flying.pop(reference), self.session.outcome(reference))
        self._end_stalled()
        if self.is_stopping and time.monotonic() - self._stop_asked > self.grace:
            self._end_by_force()
        return True

    def progress(self) -> int:
        """Grows whenever a run's checkpoints advance or it finishes."""
        total = 0
        for planned in self.folder.plan().runs:
            run = self.root.run(planned.hash)
            latest = run.latest_checkpoint()
            total += (latest[0] if latest else 0) + (run.result() is not None)
        return total

    def _left(self) -> list[PlannedRun]:
        """Runs that are neither in the air nor at their end, in the plan's order."""
        flying = self._in_the_air()
        due = self.plan.runs
        if self.supply is not None:
            due = self.supply.due(self._is_over, max(self._room(), 1))
        waiting = [p for p in due if p.hash not in flying and p.hash not in self._over]
        self._over |= {p.hash for p in waiting if self._is_over(p)}
        return [p for p in waiting if p.hash not in self._over]

    def _in_the_air(self) -> set[str]:
        return {planned.hash for planned in self._flying.values()}

    def _is_over(self, planned: PlannedRun) -> bool:
        run = self.root.run(planned.hash)
        if run.is_complete(self.plan.evaluations):
            return True
        attempts = run.attempts()
        end = attempts[-1].end() if attempts else None
        if end is None:
            return False
        ours = attempts[-1].lease().get("experiment") == self.folder.name
        tried = end["state"] in ("FAILED", "KILLED") and end["time"] >= self.since
        return end["final"] or (ours and tried)

    def _launch(self, left: list[PlannedRun]) -> None:
        if not left:
            return
        room = self._room() - len(self._flying)
        for planned in left:
            if room <= 0:
                return
            if planned.hash not in self._in_the_air() and self._may_start(planned):
                self._start(planned)
                room -= 1

    def _room(self) -> int:
        """How many runs may be in the air at once."""
        room = self.session.capacity(self.plan.resources)
        return min(room, self.limit) if self.limit else room

    def _may_start(self, planned: PlannedRun) -> bool:
        """Not while it waits after a death, nor while another experiment's driver has it."""
        deaths = self._deaths.get(planned.hash)
        if deaths is not None and time.monotonic() < deaths.not_before:
            return False
        attempts = self.root.run(planned.hash).attempts()
        if not attempts or not is_live(attempts[-1]):
            return True
        return attempts[-1].lease().get("experiment") == self.folder.name

    def _start(self, planned: PlannedRun) -> None:
        plan, name, run = self.plan, self._name(planned), self.root.run(planned.hash)
        if not run.is_frozen:
            log.info("%s: its folder is gone, it is trained anew", name)
            run.freeze(planned.spec)
        log.info("%s starts (%s)", name, planned.hash)
        reference = self.session.start(
            name,
            plan.resources,
            str(self.root.path),
            planned.hash,
            plan.name,
            plan.log,
            self._resources(planned),
            plan.evaluations,
            self.execute,
            plan.resources.gpus > 0,
        )
        self._flying[reference] = planned

    def _resources(self, planned: PlannedRun) -> ResourceSpec:
        smaller = self._micro_batch.get(planned.hash)
        return replace(self.plan.resources, micro_batch=smaller or self.plan.resources.micro_batch)

    def _take_in(self, planned: PlannedRun, outcome: dict[str, Any] | str) -> None:
        stalled = self._stalled.pop(planned.hash, "")
        if isinstance(outcome, str):
            self._worker_died(planned, stalled or outcome)
            return
        log.info(
            "%s %s at step %s (attempt %s) %s",
            self._name(planned),
            outcome["state"],
            outcome["step"],
            outcome["attempt"],
            outcome["reason"],
        )

    def _worker_died(self, planned: PlannedRun, why: str) -> None:
        run = self.root.run(planned.hash)
        deaths = self._deaths.setdefault(planned.hash, _Deaths())
        latest = run.latest_checkpoint()
        step = latest[0] if latest else 0
        deaths.count = 1 if step > deaths.furthest else deaths.count + 1
        deaths.furthest = max(step, deaths.furthest)
        deaths.not_before = time.monotonic() + deaths.count - 1
        log.warning("%s: its worker died (%s)", self._name(planned), why)
        if why.startswith("OutOfMemoryError"):  # Ray killed it before the host's memory was gone
            before = self._resources(planned).micro_batch or planned.spec.data.batch
            self._micro_batch[planned.hash] = (before + 1) // 2
        if self.is_stopping:
            self._end_last(run, "KILLED", f"did not stop within {self.grace:g} s")
        elif deaths.count >= MAX_DEATHS:
            reason = f"{MAX_DEATHS} workers died without a new checkpoint; the last: {why}"
            self._end_last(run, "FAILED", reason)
        else:
            self._end_last(run, "LOST", f"its worker died: {why}")

    def _end_stalled(self) -> None:
        """Kill the workers of runs that get nowhere; they are then started again."""
        for reference, planned in self._flying.items():
            attempts = self.root.run(planned.hash).attempts()
            if not attempts or attempts[-1].end() is not None:
                continue
            lease = attempts[-1].lease()
            ours = lease.get("experiment") == self.folder.name
            if ours and self._watchdog.is_stalled(planned.hash, attempts[-1]):
                why = f"no progress for {self.plan.resources.stall_seconds:g} s"
                log.warning("%s: %s, its worker is killed", self._name(planned), why)
                self._stalled[planned.hash] = why
                step = last_step(attempts[-1])
                attempts[-1].write_end("LOST", why, step=step, time=time.time())
                self.session.kill(reference, lease)

    def _end_last(self, run: RunFolder, state: str, reason: str) -> None:
        """End the attempt of ours that a dead worker left; make one if it died before its claim."""
        attempts = run.attempts()
        if attempts and attempts[-1].lease().get("experiment") == self.folder.name:
            last, step = attempts[-1], last_step(attempts[-1])
            if last.end() is None:
                last.write_end(state, reason, step=step, time=time.time())
            if state == "LOST" or (last.end() or {}).get("state") == state:
                return
        if state != "LOST":
            Attempt.claim(run, experiment=self.folder.name).end(state, reason)

    def _end_by_force(self) -> None:
        if not self._cancelled:
            log.warning("%d runs did not stop in time: killing them", len(self._flying))
            self.session.cancel(list(self._flying))
            self._cancelled = True

    def _name(self, planned: PlannedRun) -> str:
        return f"{self.plan.name}/{planned.arm}/{planned.seed}"
