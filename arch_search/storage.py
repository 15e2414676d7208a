"""Where the truth stands: one folder for each run and each experiment under one storage root.

Free of torch, Ray and MLflow. Names that come from files or people cannot leave the root.
"""

import contextlib
import os
import re
import tempfile
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from arch_search.errors import UsageError
from arch_search.files import dump_json, read_json, read_object, write_atomic, write_once
from arch_search.plan_spec import Plan, plan_to_json, read_plan
from arch_search.run_settings import EvaluationSpec
from arch_search.spec import RunSpec, run_from_json, run_to_json

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
HASH = re.compile(r"[0-9a-f]{8,64}")
ROOT_VARIABLE = "ARCH_SEARCH_ROOT"
RESULT = {"state": str, "metrics": dict}
EVALUATION = {"task": dict, "metrics": dict, "tables": dict}


def _listed(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.is_dir() else []


@dataclass(frozen=True, slots=True)
class AttemptFolder:
    """One attempt at a run: `runs/<hash>/attempts/<number>`."""

    path: Path

    @property
    def number(self) -> int:
        return int(self.path.name)

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    def lease(self) -> dict[str, Any]:
        """Who holds or held it; an attempt's folder never exists without it."""
        return read_object(self.path / "lease.json", {}) or {}

    def environment(self) -> dict[str, Any]:
        """The versions and the device that it ran on; empty until the worker has said so."""
        return read_object(self.path / "environment.json", {}) or {}

    def write_environment(self, environment: dict[str, Any]) -> None:
        write_atomic(self.path / "environment.json", dump_json(environment))

    def end(self) -> dict[str, Any] | None:
        """How it ended: state, reason, step, time; None while nobody has said so."""
        return read_object(self.path / "end.json", {"state": str})

    def write_end(
        self, state: str, reason: str, *, step: int, time: float, final: bool = False
    ) -> bool:
        """Say once how it ended. `final`: the same run would end so again, do not retry it."""
        end = {"state": state, "reason": reason, "step": step, "time": time, "final": final}
        return write_once(self.path / "end.json", dump_json(end))

    def checkpoints(self) -> tuple[tuple[int, Path], ...]:
        """Complete checkpoints as (step, folder), ascending."""
        folder = self.path / "checkpoints"
        names = _listed(folder)
        return tuple((int(n), folder / n) for n in names if re.fullmatch(r"\d{8}", n))


@dataclass(frozen=True, slots=True)
class RunFolder:
    """All that is known of one run: `runs/<hash>`."""

    path: Path

    @property
    def hash(self) -> str:
        return self.path.name

    def freeze(self, spec: RunSpec, *, durable: bool = True) -> None:
        """Write the specification once. Raises ValueError if another one stands there.

        Args:
            durable: False skips the flush to disk, for who would write it again after a power cut.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if write_once(self.path / "spec.json", run_to_json(spec), durable=durable):
            return
        if (self.path / "spec.json").stat().st_size == 0:  # the power was cut before the flush
            write_atomic(self.path / "spec.json", run_to_json(spec))
        if self.spec() != spec:
            raise ValueError(f"{self.path}/spec.json is not the run that its name says")

    @property
    def is_frozen(self) -> bool:
        """Whether its specification stands there; not if somebody has deleted the folder."""
        return (self.path / "spec.json").exists()

    def spec(self) -> RunSpec:
        return run_from_json((self.path / "spec.json").read_bytes())

    def attempts(self) -> tuple[AttemptFolder, ...]:
        """Every attempt, oldest first."""
        folder = self.path / "attempts"
        numbers = sorted((n for n in _listed(folder) if re.fullmatch(r"\d{4,}", n)), key=int)
        return tuple(AttemptFolder(folder / n) for n in numbers)

    def attempt(self, number: int) -> AttemptFolder:
        return AttemptFolder(self.path / "attempts" / f"{number:04d}")

    def latest_checkpoint(self) -> tuple[int, int, Path] | None:
        """(step, attempt, folder) of the most advanced complete checkpoint of any attempt."""
        found = [
            (step, attempt.number, folder)
            for attempt in self.attempts()
            for step, folder in attempt.checkpoints()
        ]
        return max(found, default=None)

    def result(self) -> dict[str, Any] | None:
        """What the finished run reports; None before."""
        return read_object(self.path / "result.json", RESULT)

    def write_result(self, result: dict[str, Any]) -> bool:
        return write_once(self.path / "result.json", dump_json(result))

    def evaluation(
        self, evaluation: EvaluationSpec, *, step: int | None = None, text: str = ""
    ) -> dict[str, Any] | None:
        """{"task", "metrics", "tables"} of an evaluation that was done; None before.

        Args:
            step: of the checkpoint of that step; of the finished run if None.
            text: what tells apart the texts that an imported model is evaluated on.
        """
        return read_object(self._evaluation_file(evaluation, step, text), EVALUATION)

    def evaluations(self, *, step: int | None = None) -> tuple[dict[str, Any], ...]:
        """All that was evaluated of the finished run, whoever asked for it, in a fixed order.

        Args:
            step: as in `evaluation`.
        """
        files = sorted(self._evaluation_folder(step).glob("*.json"))
        found = (read_object(file, EVALUATION) for file in files)
        return tuple(value for value in found if value is not None)

    def write_evaluation(
        self,
        evaluation: EvaluationSpec,
        *,
        metrics: dict[str, float],
        tables: dict[str, Any],
        convention: str = "",
        made: dict[str, Any] | None = None,
        step: int | None = None,
        text: str = "",
    ) -> None:
        """Keep an evaluation: scalars by metric name, tables as {name: {column: [values]}}.

        Args:
            convention: what the numbers count, in words.
            made: with which code, of which checkpoint, where and when.
            step, text: as in `evaluation`.
        """
        file = self._evaluation_file(evaluation, step, text)
        file.parent.mkdir(parents=True, exist_ok=True)
        value = {"task": asdict(evaluation), "metrics": metrics, "tables": tables}
        about = {"convention": convention, "made": made or {}}
        write_atomic(file, dump_json({**value, **{k: v for k, v in about.items() if v}}))

    def _evaluation_file(self, evaluation: EvaluationSpec, step: int | None, text: str) -> Path:
        name = f"{evaluation.hash}-{text}.json" if text else f"{evaluation.hash}.json"
        return self._evaluation_folder(step) / name

    def _evaluation_folder(self, step: int | None) -> Path:
        folder = self.path / "evaluations"
        return folder if step is None else folder / f"step-{step:08d}"

    def missing(self, evaluations: Iterable[EvaluationSpec]) -> tuple[EvaluationSpec, ...]:
        """The evaluations asked for that have not been done."""
        return tuple(e for e in evaluations if self.evaluation(e) is None)

    def is_complete(self, evaluations: Iterable[EvaluationSpec]) -> bool:
        return self.result() is not None and not self.missing(evaluations)


@dataclass(frozen=True, slots=True)
class ExperimentFolder:
    """One experiment: `experiments/<name>`."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def lock(self) -> Path:
        return self.path / "driver.lock"

    @property
    def log(self) -> Path:
        return self.path / "driver.log"

    @property
    def stop(self) -> Path:
        """Exists while the experiment is asked to stop: {"state", "reason"}."""
        return self.path / "stop"

    @property
    def report(self) -> Path:
        return self.path / "report"

    def plan(self) -> Plan:
        """The plan in force, a sweep's with its trials so far. Raises UsageError without one."""
        plan = self.frozen_plan()
        if plan.sweep is None:
            return plan
        from arch_search.search.trials import with_trials  # it needs the paths of this module

        return with_trials(plan, self.path)

    def frozen_plan(self) -> Plan:
        """The plan as it was submitted. Raises UsageError if there is none, or none to be read."""
        try:
            return read_plan(self.path / "plan.json")
        except FileNotFoundError:
            raise UsageError(f"no plan in {self.path}: submit the experiment first") from None

    def write_plan(self, plan: Plan) -> None:
        """Put a plan in force unless it is there, whenever made; the one before stays in plans/."""
        earlier = self.path / "plans"
        earlier.mkdir(parents=True, exist_ok=True)
        current = self.path / "plan.json"
        if current.exists():
            with contextlib.suppress(UsageError):  # one that cannot be read is kept and replaced
                before = self.frozen_plan()
                if before == replace(plan, created=before.created):
                    return
            number = 1 + sum(1 for _ in earlier.glob("*.json"))
            write_once(earlier / f"{number}.json", current.read_bytes())
        write_atomic(current, plan_to_json(plan))

    def read(self, name: str) -> dict[str, Any]:
        """driver.json or tracking.json; empty if it is not there."""
        return read_json(self.path / name) or {}

    def write(self, name: str, value: dict[str, Any], *, durable: bool = True) -> None:
        write_atomic(self.path / name, dump_json(value), durable=durable)


class Root:
    """The storage root: a folder on a local or shared POSIX file system."""

    def __init__(self, location: str | Path | None = None) -> None:
        """Find it: the argument, then ARCH_SEARCH_ROOT, then ~/.arch-search. Touches no disk.

        Raises UsageError for a URL other than file://.
        """
        text = str(location or os.environ.get(ROOT_VARIABLE) or "~/.arch-search")
        parts = urlsplit(text)
        if parts.scheme == "file" and parts.netloc in ("", "localhost"):
            text = unquote(parts.path)
        elif "://" in text:
            raise UsageError(
                f"storage root {text!r}: only folders on a local or shared file system (a path or "
                "file:///path) can hold leases and locks; mount the bucket or choose a path"
            )
        self.path = Path(text).expanduser().absolute()

    def __repr__(self) -> str:
        return f"Root({str(self.path)!r})"

    def make(self) -> "Root":
        """Make its folders; returns itself. Raises UsageError if it cannot be written."""
        try:
            for part in ("runs", "experiments"):
                (self.path / part).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            raise UsageError(
                f"storage root {self.path} cannot be written ({error.strerror}); "
                f"choose another with --root or {ROOT_VARIABLE}"
            ) from None
        return self

    @property
    def identity(self) -> str:
        """A name of this root that stays when it is moved; it tells roots apart in one MLflow."""
        file = self.path / "root.json"
        if not file.exists():
            write_once(file, dump_json({"id": uuid.uuid4().hex}))
        return (read_json(file) or {})["id"]

    def run(self, run_hash: str) -> RunFolder:
        """A run's folder. Raises ValueError for what is not a hash."""
        if not HASH.fullmatch(run_hash):
            raise ValueError(f"{run_hash!r} is not a run's hash (lower-case hexadecimal digits)")
        return RunFolder(self.path / "runs" / run_hash)

    def experiment(self, name: str) -> ExperimentFolder:
        """An experiment's folder. Raises UsageError for what cannot be a name."""
        if not NAME.fullmatch(name):
            raise UsageError(
                f"experiment name {name!r}: expected a letter or digit, then up to 99 letters, "
                "digits, '.', '_' or '-'"
            )
        return ExperimentFolder(self.path / "experiments" / name)

    def runs(self) -> tuple[RunFolder, ...]:
        names = _listed(self.path / "runs")
        return tuple(self.run(name) for name in names if HASH.fullmatch(name))

    def experiments(self) -> tuple[ExperimentFolder, ...]:
        """Every experiment that has a plan, by name."""
        names = _listed(self.path / "experiments")
        folders = [self.experiment(name) for name in names if NAME.fullmatch(name)]
        return tuple(folder for folder in folders if (folder.path / "plan.json").exists())
