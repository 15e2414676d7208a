"""Optuna: who proposes, and where people look at the study. The only module that imports it.

Two studies hold the same trials. One lives in memory, where asking costs no round trips and a draw
that is of no use can be dropped. The other stands in the storage that the file names, for
optuna-dashboard and for whoever reads it; it is filled from the sweep's record, and a storage that
is away for a while, or was torn by a kill, is filled again.

A sampler's randomness comes from (sweep's seed, trial, draw) alone. So nothing of it has to be
saved: after a kill the same history proposes the same trial.
"""

import inspect
import logging
import queue
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.samplers._lazy_random_state import LazyRandomState  # the only way to their generators
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from arch_search.errors import UsageError
from arch_search.experiment import nearest
from arch_search.redaction import hide_secrets, with_secret
from arch_search.search.trials import Trial
from arch_search.spec import content_hash
from arch_search.storage import ExperimentFolder
from arch_search.sweep_spec import SamplerSpec, SweepSpec

optuna.logging.set_verbosity(optuna.logging.WARNING)
log = logging.getLogger(__name__)

OURS = {"tpe": "TPESampler", "nsgaii": "NSGAIISampler", "random": "RandomSampler",
        "grid": "BruteForceSampler"}  # fmt: skip
SINGLE_ONLY = ("CmaEsSampler",)
JOURNAL = "journal:"
STATES = {"COMPLETE": TrialState.COMPLETE, "PRUNED": TrialState.PRUNED, "FAIL": TrialState.FAIL}
CLOSE_SECONDS = 60.0
LOCK_SECONDS = 5  # after so long a journal's lock is taken from a writer that was killed


def sampler_factory(spec: SamplerSpec, objectives: int) -> Callable[[int], BaseSampler]:
    """Makes the sampler from a seed.

    Raises:
        UsageError: no such sampler, options that it does not take, or several objectives for one
            that knows only one.
    """
    known = {name for name in dir(optuna.samplers) if name.endswith("Sampler")} - {"BaseSampler"}
    class_name = OURS.get(spec.name.lower(), spec.name)
    if class_name not in known:
        raise UsageError(
            f"sweep.sampler: unknown sampler {spec.name!r}; {nearest(spec.name, [*OURS, *known])}"
        )
    if class_name in SINGLE_ONLY and objectives > 1:
        raise UsageError(f"sweep.sampler: {spec.name} takes one objective, not {objectives}")
    cls = getattr(optuna.samplers, class_name)
    takes = inspect.signature(cls).parameters
    if unknown := sorted(spec.options.keys() - takes.keys()):
        raise UsageError(
            f"sweep.sampler: {spec.name} has no option {unknown[0]!r}; "
            f"{nearest(unknown[0], list(takes))}"
        )

    def make(seed: int) -> BaseSampler:
        given = {"seed": seed, **spec.options} if "seed" in takes else spec.options
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a sampler is experimental was the file's choice
            return cls(**given)

    try:
        make(0)
    except (TypeError, ValueError, ImportError) as error:
        said = str(error).strip().splitlines()[0]
        raise UsageError(f"sweep.sampler: {spec.name}: {said}") from None
    return make


def _directions(sweep: SweepSpec) -> list[StudyDirection]:
    return [StudyDirection[direction.upper()] for direction in sweep.objectives.values()]


class Proposals:
    """The study in memory: proposes, and is told how it went."""

    def __init__(self, sweep: SweepSpec) -> None:
        """Raises UsageError as `sampler_factory`."""
        self._sweep = sweep
        self._sampler = sampler_factory(sweep.sampler, len(sweep.objectives))(sweep.seed)
        self._by_chance = optuna.samplers.RandomSampler()
        self._storage = InMemoryStorage()
        self._study = optuna.create_study(storage=self._storage, directions=_directions(sweep))
        self._ids: dict[int, int] = {}
        self._noted: dict[str, Any] = {}
        self._dropped = 0

    def ask(
        self, number: int, draw: int, fixed: Mapping[str, Any], *, at_random: bool = False
    ) -> optuna.Trial:
        """A trial to ask for parameters; `keep` it or `drop` it.

        Args:
            number, draw: which trial of the sweep, and which draw for it: they seed the sampler.
            fixed: parameters that are not to be drawn.
        """
        seed = int(content_hash([self._sweep.seed, number, draw])[:8], 16)
        self._study.sampler = self._by_chance if at_random else self._sampler
        _reseed(self._study.sampler, seed)
        if fixed:
            self._study.enqueue_trial(dict(fixed))
        return self._study.ask()

    def keep(self, number: int, asked: optuna.Trial) -> None:
        self._ids[number] = asked._trial_id

    def drop(self, asked: optuna.Trial) -> None:
        self._storage.set_trial_state_values(asked._trial_id, TrialState.FAIL)
        self._dropped += 1

    def notes(self, number: int) -> dict[str, Any]:
        """What the sampler wrote for itself, on a trial and on the study since the trial before.

        With the number of draws dropped in between, by which Optuna's own ids are the same again.
        """
        trial = self._storage.get_trial(self._ids[number]).system_attrs
        study = self._storage.get_study_system_attrs(self._study._study_id)
        new = {k: v for k, v in study.items() if self._noted.get(k) != v}
        self._noted |= new
        dropped, self._dropped = self._dropped, 0
        own = {k: v for k, v in trial.items() if k != "fixed_params"}
        return {"trial": own, "study": new, "dropped": dropped}

    def distributions(self, number: int) -> dict[str, BaseDistribution]:
        return self._storage.get_trial(self._ids[number]).distributions

    def restore(self, trial: Trial, distributions: Mapping[str, BaseDistribution]) -> None:
        """Put in a trial of an earlier driver."""
        frozen = _frozen(trial, distributions)
        study_id = self._study._study_id
        for _ in range(trial.notes["dropped"]):
            self._study.add_trial(create_trial(state=TrialState.FAIL))
        for key, value in trial.notes["study"].items():
            self._storage.set_study_system_attr(study_id, key, value)
            self._noted[key] = value
        self._ids[trial.number] = self._storage.create_new_trial(study_id, template_trial=frozen)

    def score(self, number: int, step: int, values: list[float]) -> None:
        """A trial's score at a rung; Optuna keeps those of one objective alone."""
        if len(values) == 1:
            self._storage.set_trial_intermediate_value(self._ids[number], step, values[0])

    def tell(self, number: int, state: str, values: list[float] | None,
             excess: Mapping[str, float]) -> None:  # fmt: skip
        for name, value in excess.items():
            key = f"constraints:{name}"
            self._storage.set_trial_system_attr(self._ids[number], key, value)
        self._storage.set_trial_state_values(self._ids[number], STATES[state], values)


def _reseed(sampler: BaseSampler, seed: int) -> None:
    """Let a sampler, and those that it asks, draw as if they had been made with this seed."""
    parts: list[Any] = [sampler]
    for part in parts:
        for value in vars(part).values():
            if isinstance(value, LazyRandomState):
                value.rng.seed(seed)
            elif isinstance(value, BaseSampler) and value not in parts:
                parts.append(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """What is to be said of a trial: as it stood when it was said."""

    trial: Trial
    distributions: Mapping[str, BaseDistribution]
    values: list[float] | None
    excess: Mapping[str, float]


def _frozen(trial: Trial, distributions: Mapping[str, BaseDistribution]) -> FrozenTrial:
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
                                        directions=_directions(self._sweep),
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
            frozen = _frozen(trial, said.distributions)
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


def storage_url(sweep: SweepSpec, folder: ExperimentFolder, version: str) -> str:
    """Where the study stands: what `optuna-dashboard` takes."""
    url = with_secret(folder.path.parents[1], sweep.storage)
    return url.removeprefix(JOURNAL) or str(_journal(folder, version))


def open_storage(url: str, folder: ExperimentFolder, version: str) -> BaseStorage:
    """The storage of a URL; a journal file in the experiment's folder if there is none."""
    if not url or url.startswith(JOURNAL):
        path = url.removeprefix(JOURNAL) or str(_journal(folder, version))
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


def _journal(folder: ExperimentFolder, version: str) -> Any:
    return folder.path / f"study-{version}.journal"


def _set_aside(folder: ExperimentFolder, version: str) -> bool:
    """Move a journal that cannot be read out of the way: the record fills a new one."""
    path = _journal(folder, version)
    if not path.exists():
        return False
    log.warning("%s was torn; it is filled again from the sweep's record", path)
    path.rename(path.with_suffix(".torn"))
    return True


def _first(error: Exception) -> str:
    text = (str(error).strip().splitlines() or [""])[0]
    return hide_secrets(f"{type(error).__name__}: {text[:200]}")
