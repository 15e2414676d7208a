"""The record of a sweep: what was tried and how it went, one JSON record a line, only appended to.

This is the truth; the Optuna study is filled from it, and can be filled again. One driver writes.
Free of torch, Ray and Optuna, so that status, MLflow's writer and reports can read it.
"""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from arch_search.errors import UsageError
from arch_search.plan_spec import ArmSpec, Plan, PlannedRun
from arch_search.search.rungs import rung_run, rung_train, trained_steps
from arch_search.sweep_spec import SweepSpec

FIRST_FRESH_SEED = 1_000  # of runs after the search: seeds that chose nothing
SEED = 0  # of every trial: they see the same tokens from the same start
TAKEN = "taken from "  # an origin: the result is another experiment's, whose name follows
_ARM = TypeAdapter(ArmSpec)


@dataclass(kw_only=True, slots=True)
class Outcome:
    """How a run of a trial ended: its metrics, or why it has none."""

    metrics: dict[str, float] = field(default_factory=dict)
    failed: str = ""


@dataclass(kw_only=True, slots=True)
class Trial:
    """One layout on its way through the rungs. `state` is what an Optuna study calls it."""

    number: int
    params: dict[str, Any]
    arm: ArmSpec
    code: str
    immune: bool = False
    origin: str = "sampler"  # or enqueue, random, listed, `TAKEN` and an experiment
    notes: dict[str, Any] = field(default_factory=dict)  # the sampler's own, as its generation
    rung: int = 0  # the rung that it was let on to
    outcomes: dict[int, Outcome] = field(default_factory=dict)  # by rung
    fresh: dict[int, Outcome] = field(default_factory=dict)  # by seed, the whole budget each
    state: str = "RUNNING"  # COMPLETE, PRUNED or FAIL in the end
    reason: str = ""
    _runs: dict[int, PlannedRun] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        return f"t{self.number:04d}"

    @property
    def is_taken(self) -> bool:
        """Whether it is another experiment's: none of those that the sweep was to try."""
        return self.origin.startswith(TAKEN)

    @property
    def content(self) -> str:
        """Which layout it is: equal for equal models trained alike, however they were drawn."""
        return self.arm.factors["content"]

    def run(self, sweep: SweepSpec, rung: int) -> PlannedRun:
        """The run that scores it at a rung."""
        if rung not in self._runs:
            spec = rung_run(self.arm, sweep, rung, seed=SEED, code=self.code)
            self._runs[rung] = PlannedRun(
                arm=self._arm_name(rung), seed=SEED, hash=spec.hash, spec=spec
            )
        return self._runs[rung]

    def fresh_run(self, sweep: SweepSpec, seed: int) -> PlannedRun:
        """A run of the whole budget with a seed that chose nothing."""
        rung = len(sweep.rungs) - 1
        spec = rung_run(self.arm, sweep, rung, seed=seed, code=self.code)
        return PlannedRun(arm=self._arm_name(rung), seed=seed, hash=spec.hash, spec=spec)

    def tokens(self, sweep: SweepSpec, rung: int) -> int:
        """The budget of a rung."""
        return rung_train(self.arm.train, self.arm.data, sweep, rung).tokens

    def arm_at(self, sweep: SweepSpec, rung: int) -> ArmSpec:
        """The arm that its run at a rung belongs to."""
        factors = {"trial": self.number, "rung": rung, "immune": self.immune, **self.params}
        train = rung_train(self.arm.train, self.arm.data, sweep, rung)
        return replace(self.arm, name=self._arm_name(rung), factors=factors, train=train)

    def steps(self, sweep: SweepSpec) -> int:
        """Optimiser steps that its search cost: a rung adds what lies beyond the trunk before."""
        if self.is_taken:
            return 0
        runs = [self.run(sweep, rung).spec for rung in range(self.rung + 1)]
        return sum(trained_steps(spec, runs[i - 1] if i else None) for i, spec in enumerate(runs))

    def _arm_name(self, rung: int) -> str:
        return f"{self.name}-rung{rung}"


class Ledger:
    """The trials of one version of a sweep, and the file that they stand in."""

    def __init__(self, path: Path) -> None:
        """Read what is there. A last line that a kill tore is as if it had not been written."""
        self.path = path
        self.trials: list[Trial] = []
        self.took: set[str] = set()  # the experiments whose results were taken in
        self._taken = 0  # trials that are theirs
        self.end = ""  # why the search is over; empty while it is not
        self.searched_for = 0  # how many trials were asked for when it was over
        self.closed_for = 0  # and when the second look was over as well
        self._descriptor = -1
        self._unsynced = False
        for record in _read(path):
            self._apply(record)

    def open(self) -> "Ledger":
        """Make it ready for writing: by the one driver, which holds the experiment's lock."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        whole = self.path.read_bytes().rfind(b"\n") + 1
        os.ftruncate(self._descriptor, whole)
        return self

    def close(self) -> None:
        self.sync()
        os.close(self._descriptor)

    def write(self, kind: str, **fields: Any) -> None:
        """Append a record and take it in. It is durable after `sync`."""
        record = {"kind": kind, **fields}
        self._append(record)
        self._apply(record)

    def add(self, trial: Trial) -> None:
        """Append a new trial."""
        fields = ("number", "params", "code", "immune", "origin", "notes")
        record = {name: getattr(trial, name) for name in fields}
        self._append({"kind": "trial", **record, "arm": asdict(trial.arm)})
        self.trials.append(trial)

    def add_taken(self, experiment: str, trials: Iterable[Trial]) -> None:
        """Append what another experiment had found, all of it or, after a kill, none."""
        names = ("number", "params", "code", "origin", "notes", "rung", "state", "reason")
        records = [
            {
                **{name: getattr(trial, name) for name in names},
                "arm": asdict(trial.arm),
                "outcomes": {str(rung): asdict(one) for rung, one in trial.outcomes.items()},
            }
            for trial in trials
        ]
        self.write("taken", experiment=experiment, trials=records)

    @property
    def tried(self) -> int:
        """How many trials are the sweep's own: those of which a number was asked for."""
        return len(self.trials) - self._taken

    def _append(self, record: dict[str, Any]) -> None:
        line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
        if os.write(self._descriptor, line) != len(line):
            raise OSError("the sweep's record could not be written in full: is the disk full?")
        self._unsynced = True

    def sync(self) -> None:
        """Make all that was written survive a power cut: before anything follows from it."""
        if self._unsynced:
            os.fdatasync(self._descriptor)
        self._unsynced = False

    def _apply(self, record: dict[str, Any]) -> None:
        match record["kind"]:
            case "trial":
                fields = {k: v for k, v in record.items() if k not in ("kind", "arm")}
                self.trials.append(Trial(**fields, arm=_ARM.validate_python(record["arm"])))
            case "taken":
                self.took.add(record["experiment"])
                for given in record["trials"]:
                    outcomes = {int(k): Outcome(**one) for k, one in given["outcomes"].items()}
                    arm = _ARM.validate_python(given["arm"])
                    self.trials.append(Trial(**{**given, "arm": arm, "outcomes": outcomes}))
                    self._taken += 1
            case "score":
                trial = self.trials[record["number"]]
                found = Outcome(metrics=record["metrics"], failed=record["failed"])
                trial.outcomes[record["rung"]] = found
            case "promoted":
                self.trials[record["number"]].rung = record["rung"]
            case "ended":
                trial = self.trials[record["number"]]
                trial.state, trial.reason = record["state"], record["reason"]
            case "fresh":
                found = Outcome(metrics=record["metrics"], failed=record["failed"])
                self.trials[record["number"]].fresh[record["seed"]] = found
            case "over":
                self.end, self.searched_for = record["reason"], record["trials"]
            case "closed":
                self.closed_for = record["trials"]


def _read(path: Path) -> Iterator[dict[str, Any]]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), 1):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise UsageError(
                f"{path}, line {number}, is damaged ({error}): put it back from a copy, or submit "
                "the sweep under another name; runs that have finished are not run again"
            ) from None


def ledger_path(experiment: Path, version: str) -> Path:
    """Where a version of a sweep keeps its trials."""
    return experiment / f"trials-{version}.jsonl"


def with_trials(plan: Plan, experiment: Path) -> Plan:
    """The plan of a sweep with an arm and a run for whatever its trials were trained for so far."""
    if plan.sweep is None:
        return plan
    ledger = Ledger(ledger_path(experiment, plan.sweep_version))
    arms, runs = list(plan.arms), []
    for trial in ledger.trials:
        rungs = () if trial.is_taken else range(trial.rung + 1)
        arms += [trial.arm_at(plan.sweep, rung) for rung in rungs]
        if trial.is_taken and trial.fresh:
            arms.append(trial.arm_at(plan.sweep, len(plan.sweep.rungs) - 1))
        runs += [trial.run(plan.sweep, rung) for rung in rungs]
        runs += [trial.fresh_run(plan.sweep, seed) for seed in fresh_seeds(trial, plan.sweep)]
    return replace(plan, arms=tuple(arms), runs=tuple(runs))


def is_closed(plan: Plan, experiment: Path) -> bool:
    """Whether a sweep has nothing left to do."""
    assert plan.sweep is not None
    ledger = Ledger(ledger_path(experiment, plan.sweep_version))
    return ledger.closed_for >= plan.sweep.trials


def fresh_seeds(trial: Trial, sweep: SweepSpec) -> Iterable[int]:
    """The seeds with which a trial has been, or is being, trained anew."""
    if not trial.fresh:
        return ()
    return range(FIRST_FRESH_SEED, FIRST_FRESH_SEED + sweep.again.seeds)
