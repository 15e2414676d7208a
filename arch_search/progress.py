"""How an experiment stands, read from the storage root alone: torch-free, for every reader."""

from dataclasses import dataclass
from pathlib import Path

from arch_search.journal import Record, read_journal
from arch_search.lease import holder_lives, is_live
from arch_search.plan_spec import Plan, PlannedRun
from arch_search.search.trials import is_closed
from arch_search.storage import AttemptFolder, ExperimentFolder, Root, RunFolder

AT_WORK = ("STARTING", "RUNNING", "STOPPING")  # what a driver says while it lives
WAITED_FOR = ("NONE", "SUBMITTED")  # no driver yet; a job was sent to a cluster
TAIL_BYTES = 65_536
PACE_RECORDS = 40  # the latest, that a rate is taken from


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStatus:
    """One run as it stands. `values` holds what it logged last of each metric."""

    name: str  # experiment/arm/seed
    arm: str
    seed: int
    hash: str
    state: str  # PENDING, RUNNING, FINISHED, FAILED, KILLED, PREEMPTED or LOST
    reason: str
    attempts: int
    step: int
    steps: int
    values: dict[str, float]
    seconds_a_step: float | None = None  # lately, evaluations and checkpoints included
    seconds_left: float | None = None  # of a running run, at that rate


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentStatus:
    """An experiment as it stands. `driver` is what its driver says, or LOST if that is gone."""

    name: str
    driver: str  # NONE, SUBMITTED, STARTING, RUNNING, STOPPING, FINISHED, FAILED, STOPPED or LOST
    reason: str
    tracking: str  # how far MLflow is behind; empty if it is not
    runs: tuple[RunStatus, ...]

    @property
    def is_live(self) -> bool:
        return self.driver in AT_WORK

    def count(self, state: str) -> int:
        return sum(run.state == state for run in self.runs)

    @property
    def seconds_left(self) -> float | None:
        """Until the last run has trained, if as many run at once as now; None: not known."""
        rates = [run.seconds_a_step for run in self.runs if run.seconds_a_step]
        running = self.count("RUNNING")
        if not rates or not running:
            return None
        over = ("FINISHED", "FAILED", "KILLED")
        steps = sum(run.steps - run.step for run in self.runs if run.state not in over)
        longest = max(run.seconds_left or 0.0 for run in self.runs)
        return max(steps * sum(rates) / len(rates) / running, longest)


def driver_state(folder: ExperimentFolder) -> tuple[str, str]:
    """What the driver says of itself and why; LOST if it said that it works and is gone."""
    driver = folder.read("driver.json")
    state, reason = driver.get("state", "NONE"), driver.get("reason", "")
    if state in AT_WORK and not holder_lives(driver, folder.path / "driver.json"):
        return "LOST", f"process {driver['pid']} on {driver['host']} is gone"
    return state, reason


def has_driver(folder: ExperimentFolder) -> bool:
    """Whether a living driver works on the experiment."""
    return driver_state(folder)[0] in AT_WORK


def is_done(root: Root, plan: Plan) -> bool:
    """Whether an experiment has nothing left to run or to evaluate."""
    if plan.sweep is not None:
        return is_closed(plan, root.experiment(plan.name).path)
    return all(root.run(p.hash).is_complete(plan.evaluations) for p in plan.runs)


def run_state(run: RunFolder, plan: Plan) -> tuple[str, str]:
    """A run's state within a plan, and the reason of its last attempt's end."""
    attempts = run.attempts()
    if run.is_complete(plan.evaluations):
        return "FINISHED", ""
    if not attempts:
        return "PENDING", ""
    end = attempts[-1].end()
    if end is None:
        return ("RUNNING", "") if is_live(attempts[-1]) else ("LOST", "its process is gone")
    if end["state"] == "FINISHED":
        missing = ", ".join(e.task for e in run.missing(plan.evaluations))
        return "PENDING", f"to be evaluated: {missing}"
    return end["state"], end["reason"]


def read_status(root: Root, name: str) -> ExperimentStatus:
    """Read everything that `status` shows. Raises UsageError if there is no such experiment."""
    folder = root.experiment(name)
    plan = folder.plan()
    state, reason = driver_state(folder)
    return ExperimentStatus(
        name=name,
        driver=state,
        reason=reason,
        tracking=folder.read("tracking.json").get("behind", ""),
        runs=tuple(_read_run(root, plan, planned) for planned in plan.runs),
    )


def _read_run(root: Root, plan: Plan, planned: PlannedRun) -> RunStatus:
    run = root.run(planned.hash)
    attempts = run.attempts()
    step, values, pace = _last_metrics(attempts)
    state, reason = run_state(run, plan)
    left = planned.spec.steps - step
    return RunStatus(
        name=f"{plan.name}/{planned.arm}/{planned.seed}",
        arm=planned.arm,
        seed=planned.seed,
        hash=planned.hash,
        state=state,
        reason=reason,
        attempts=len(attempts),
        step=planned.spec.steps if run.result() else step,
        steps=planned.spec.steps,
        values=values,
        seconds_a_step=pace,
        seconds_left=pace * left if pace and state == "RUNNING" else None,
    )


def _last_metrics(
    attempts: tuple[AttemptFolder, ...],
) -> tuple[int, dict[str, float], float | None]:
    """The last step, each metric's newest value, and seconds a step lately (None: not known).

    Of the newest attempt that wrote any.
    """
    for attempt in reversed(attempts):
        metrics = [r for r in _tail(attempt.journal) if r.kind == "metrics"]
        if metrics:
            values = {key: value for r in metrics for key, value in r.values.items()}
            return metrics[-1].step, values, _pace(metrics[-PACE_RECORDS:])
    return 0, {}, None


def _pace(metrics: list[Record]) -> float | None:
    first, last = metrics[0], metrics[-1]
    steps, seconds = last.step - first.step, last.time - first.time
    return seconds / steps if steps > 0 and seconds > 0 else None


def _tail(journal: Path) -> list[Record]:
    size = journal.stat().st_size if journal.exists() else 0
    records, _ = read_journal(journal, max(0, size - TAIL_BYTES))
    return records
