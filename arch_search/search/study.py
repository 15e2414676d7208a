"""The Optuna study in the storage that the file names: where people look at a sweep.

It is filled from the sweep's record by a thread of its own, so that it holds up no run; a storage
that is away for a while, or was torn by a kill, is filled again. The sampler asks another study, in
memory: see `arch_search.search.proposals`.
"""

import logging
import queue
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from arch_search.errors import UsageError
from arch_search.redaction import hide_secrets, with_secret
from arch_search.search.trials import Trial
from arch_search.storage import ExperimentFolder
from arch_search.sweep_spec import SweepSpec

optuna.logging.set_verbosity(optuna.logging.WARNING)
log = logging.getLogger(__name__)

JOURNAL = "journal:"
STATES = {"COMPLETE": TrialState.COMPLETE, "PRUNED": TrialState.PRUNED, "FAIL": TrialState.FAIL}
CLOSE_SECONDS = 60.0
LOCK_SECONDS = 5  # after so long a journal's lock is taken from a writer that was killed


def study_directions(sweep: SweepSpec) -> list[StudyDirection]:
    return [StudyDirection[direction.upper()] for direction in sweep.objectives.values()]


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """What is to be said of a trial: as it stood when it was said."""

    trial: Trial
    distributions: Mapping[str, BaseDistribution]
    values: list[float] | None
    excess: Mapping[str, float]


def frozen_trial(trial: Trial, distributions: Mapping[str, BaseDistribution]) -> FrozenTrial:
    attributes = {
        "trial": trial.number,
        "layout": trial.arm.layout,
        "content": trial.content,
        "immune": trial.immune,
        "origin": trial.origin,
        "counts": dict(trial.arm.counts),
    }
    frozen = create_trial(
        state=TrialState.RUNNING,
        params=trial.params,
        distributions=dict(distributions),
        user_attrs=attributes,
        system_attrs=dict(trial.notes["trial"]),
    )
    frozen.datetime_start = datetime.now()
    return frozen


class Published:
    """The study in its storage, brought up to the sweep's record whenever it can be reached."""

    def __init__(self, sweep: SweepSpec, folder: ExperimentFolder, version: str,
                 owner: str) -> None:  # fmt: skip
        """Open or make the study.

        Args:
            owner: what tells storage roots apart that share a database.
        Raises:
            UsageError: the storage cannot be used, or has another owner's study of this name.
        """
        self._sweep, self._folder, self._owner = sweep, folder, owner
        self._name = study_name(folder.name, version)
        self._version = version
        self._ids: dict[int, int] = {}
        self._said: dict[int, tuple[str, int]] = {}  # state and scores that the storage has
        self._storage, self._study = self._open()
        self.behind = ""
        self._queue: queue.SimpleQueue[list[Statement] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="optuna", daemon=True)
        self._thread.start()

    def _open(self) -> tuple[BaseStorage, Study]:
        try:
            url = with_secret(self._folder.path.parents[1], self._sweep.storage)
            storage = open_storage(url, self._folder, self._version)
            study = optuna.create_study(storage=storage, study_name=self._name,
                                        directions=study_directions(self._sweep),
                                        load_if_exists=True)  # fmt: skip
        except UsageError:
            raise
        except Exception as error:  # whatever a database, its driver or a torn journal raises
            if self._sweep.storage or not _set_aside(self._folder, self._version):
                shown = hide_secrets(self._sweep.storage)
                raise UsageError(f"sweep.storage {shown}: {_first(error)}") from None
            return self._open()
        owner = study.user_attrs.get("arch_search.root")
        if owner not in (None, self._owner):
            raise UsageError(
                f"sweep.storage has a study {self._name!r} of another storage root; rename this "
                "sweep (name=…), or give another storage"
            )
        if owner is None:
            study.set_user_attr("arch_search.root", self._owner)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # experimental, and for the eye alone
                study.set_metric_names(list(self._sweep.objectives))
        self._ids = {t.user_attrs["trial"]: t._trial_id for t in study.get_trials(deepcopy=False)}
        self._said = {}
        return storage, study

    def say(self, statements: list[Statement]) -> None:
        """Have the storage told, by a thread of its own: it holds up no run."""
        self._queue.put(statements)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Wait until the storage has been told everything, so long at most."""
        self._queue.put(None)
        self._thread.join(seconds)

    def _write(self) -> None:
        while (statements := self._queue.get()) is not None:
            self._bring_up_all(statements)

    def _bring_up_all(self, statements: list[Statement]) -> None:
        """Say of these trials what the storage has not got; an outage is logged and waits."""
        try:
            if self.behind:
                self._storage, self._study = self._open()
            for statement in statements:
                self._bring_up(statement)
        except Exception as error:
            if not self.behind:
                log.warning("the Optuna storage does not answer, it waits: %s", _first(error))
            self.behind = _first(error)
            return
        self.behind = ""

    def _bring_up(self, said: Statement) -> None:
        trial = said.trial
        number = trial.number
        stands = (trial.state, len(trial.outcomes))
        if self._said.get(number) == stands:
            return
        if number not in self._ids:
            frozen = frozen_trial(trial, said.distributions)
            study_id = self._study._study_id
            self._ids[number] = self._storage.create_new_trial(study_id, template_trial=frozen)
        trial_id = self._ids[number]
        known = self._storage.get_trial(trial_id) if number not in self._said else None
        if known is not None and known.state.is_finished():
            self._said[number] = stands
            return
        for rung in list(trial.outcomes)[self._said.get(number, ("", 0))[1] :]:
            self._score(trial_id, trial, rung)
        if trial.state != "RUNNING":
            for name, value in said.excess.items():
                self._storage.set_trial_system_attr(trial_id, f"constraints:{name}", value)
            if trial.reason:
                self._storage.set_trial_user_attr(trial_id, "ended", trial.reason)
            self._storage.set_trial_state_values(trial_id, STATES[trial.state], said.values)
        self._said[number] = stands

    def _score(self, trial_id: int, trial: Trial, rung: int) -> None:
        found = trial.outcomes[rung].metrics
        step = trial.tokens(self._sweep, rung)
        objectives = [name for name in self._sweep.objectives if name in found]
        if len(self._sweep.objectives) == 1 and objectives:
            self._storage.set_trial_intermediate_value(trial_id, step, found[objectives[0]])
        elif objectives:  # Optuna has no intermediate values for several objectives
            scores = {name: found[name] for name in objectives}
            self._storage.set_trial_user_attr(trial_id, f"at {step} tokens", scores)


def study_name(name: str, version: str) -> str:
    """The study's name in a storage that may hold many."""
    return f"{name}-{version[:8]}"


def stored_study(sweep: SweepSpec, folder: ExperimentFolder, version: str) -> BaseStorage | None:
    """The storage in which the study stands; None if its journal is not there yet."""
    url = with_secret(folder.path.parents[1], sweep.storage)
    is_file = not url or url.startswith(JOURNAL)
    if is_file and not Path(url.removeprefix(JOURNAL) or journal_file(folder, version)).exists():
        return None
    return open_storage(url, folder, version)


def open_storage(url: str, folder: ExperimentFolder, version: str) -> BaseStorage:
    """The storage of a URL; a journal file in the experiment's folder if there is none."""
    if not url or url.startswith(JOURNAL):
        path = url.removeprefix(JOURNAL) or str(journal_file(folder, version))
        lock = JournalFileOpenLock(path, grace_period=LOCK_SECONDS)
        return JournalStorage(JournalFileBackend(path, lock_obj=lock))
    check_url(url)
    if url.startswith("postgresql://"):
        url = url.replace("postgresql://", "postgresql+psycopg://", 1)  # the driver in our extra
    return RDBStorage(url)


def check_url(url: str) -> None:
    """Raises UsageError for what is no address of an Optuna storage."""
    if url and not url.startswith(JOURNAL) and "://" not in url:
        raise UsageError(
            f"sweep.storage {hide_secrets(url)!r}: expected a database's URL, as "
            "postgresql://host/name, or journal:/path; leave it out for a journal in the "
            "experiment's folder"
        )


def journal_file(folder: ExperimentFolder, version: str) -> Path:
    """Where a version of a study stands that has no storage of its own."""
    return folder.path / f"study-{version}.journal"


def _set_aside(folder: ExperimentFolder, version: str) -> bool:
    """Move a journal that cannot be read out of the way: the record fills a new one."""
    path = journal_file(folder, version)
    if not path.exists():
        return False
    log.warning("%s was torn; it is filled again from the sweep's record", path)
    path.rename(path.with_suffix(".torn"))
    return True


def _first(error: Exception) -> str:
    text = (str(error).strip().splitlines() or [""])[0]
    return hide_secrets(f"{type(error).__name__}: {text[:200]}")
