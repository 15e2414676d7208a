"""Who proposes: an Optuna study in memory, where a draw that is of no use can be dropped.

A sampler's randomness comes from (sweep's seed, trial, draw) alone. So its generators need not be
saved: after a kill the same history proposes the same trial.
"""

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.samplers._lazy_random_state import LazyRandomState  # the only way to their generators
from optuna.trial import TrialState, create_trial

from arch_search.errors import UsageError
from arch_search.experiment import nearest
from arch_search.search.remembered import EVERY, RememberingStorage, telling
from arch_search.search.study import STATES, frozen_trial, study_directions
from arch_search.search.trials import Trial
from arch_search.spec import content_hash
from arch_search.sweep_spec import SamplerSpec, SweepSpec

OURS = {"tpe": "TPESampler", "nsgaii": "NSGAIISampler", "random": "RandomSampler",
        "grid": "BruteForceSampler"}  # fmt: skip
SINGLE_ONLY = ("CmaEsSampler",)


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


class Proposals:
    """The study in memory: proposes, and is told how it went."""

    def __init__(self, sweep: SweepSpec) -> None:
        """Raises UsageError as `sampler_factory`."""
        self._sweep = sweep
        self._sampler = sampler_factory(sweep.sampler, len(sweep.objectives))(sweep.seed)
        self._by_chance = optuna.samplers.RandomSampler()
        self._storage = RememberingStorage()
        self._study = optuna.create_study(storage=self._storage, directions=study_directions(sweep))
        self._ids: dict[int, int] = {}
        self._noted: dict[str, Any] = {}
        self._dropped = 0
        self._remembers_since = 0  # the number of trials that it was last chosen among

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
        self._remember(number)
        if fixed:
            self._study.enqueue_trial(dict(fixed))
        return self._study.ask()

    def _remember(self, number: int) -> None:
        """Bound what TPE looks at. Chosen at fixed numbers: a resumed sweep chooses alike."""
        among = number // EVERY * EVERY
        history = self._sweep.sampler.history
        is_tpe = isinstance(self._sampler, optuna.samplers.TPESampler)
        if not is_tpe or among <= history or among == self._remembers_since:
            return
        trials = {n: self._storage.get_trial(self._ids[n]) for n in range(among)}
        best, first = telling(trials, self._study.directions, history)
        self._storage.remember((trials[n].number for n in best), trials[first].number)
        self._remembers_since = among

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
        frozen = frozen_trial(trial, distributions)
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
