"""Results of ablations and earlier sweeps as trials of a sweep: what need not be trained again.

Taken is what this sweep would have trained itself: a model of its space, the same data, budget,
schedule, seed and source, evaluated alike. A result that differs in one of these says something
else than a trial here, so it is refused, and the difference named.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from arch_search.errors import UsageError
from arch_search.experiment import nearest
from arch_search.plan_spec import ArmSpec, Plan, PlannedRun, read_plan
from arch_search.run_settings import EvaluationSpec
from arch_search.search.candidates import Candidates
from arch_search.search.rungs import rung_run
from arch_search.search.scores import read_outcome
from arch_search.search.space import Endless, Rejected, Space
from arch_search.search.trials import SEED, TAKEN, Ledger, Outcome, Trial, ledger_path
from arch_search.spec import ModelSpec, RunSpec
from arch_search.storage import Root
from arch_search.sweep_spec import SpaceSpec, SweepSpec

LAYOUTS_LOOKED_AT = 20_000  # of counts, positions or choices, until one is a given model's


@dataclass(frozen=True, kw_only=True, slots=True)
class _Source:
    """A model that another experiment trained: its runs, and what a sweep drew for it."""

    model: ModelSpec
    learning_rate: float
    runs: tuple[PlannedRun, ...]
    params: Mapping[str, Any] | None = None  # None: not known, as of an ablation
    state: str = "COMPLETE"


@dataclass(frozen=True, kw_only=True)
class Taker:
    """Reads what a sweep can take from other experiments under its root.

    `own`: the sweep's name and version, of which nothing is taken; of earlier versions much can be.
    """

    root: Root
    sweep: SweepSpec
    own: tuple[str, str]
    candidates: Candidates
    space: Space
    evaluations: Sequence[EvaluationSpec]

    def take(self, name: str) -> list[Trial]:
        """The trials that an experiment's results are, without numbers.

        Raises:
            UsageError: no such experiment, nothing of it is in the space, or what is was trained
                or evaluated otherwise than a trial here.
        """
        inside, found, why = 0, [], ""
        sources = (one for plan in self._plans(name) for one in self._sources(plan))
        for source in sources:
            if (given := self._point(source)) is None:
                continue
            inside += 1
            params, arm = given
            trial, reason = self._trial(source, params, arm, name)
            why = why or reason
            if trial is not None and trial.content not in {one.content for one in found}:
                found.append(trial)
        if found:
            return found
        if inside:
            raise UsageError(f"sweep.take: nothing can be taken from {name}: {why}")
        raise UsageError(f"sweep.take: no finished run of {name} with seed {SEED} is in this space")

    def _plans(self, name: str) -> list[Plan]:
        """The experiment's plan; of a sweep every version's, the newest first."""
        folder = self.root.experiment(name)
        if not (folder.path / "plan.json").is_file():
            known = sorted(path.name for path in (self.root.path / "experiments").glob("*"))
            said = nearest(name, known) if known else "there are none yet"
            raise UsageError(f"sweep.take: no experiment {name!r} under {self.root.path}; {said}")
        plans = [folder.frozen_plan()]
        if plans[0].sweep is None:
            return plans
        earlier = sorted(folder.path.glob("plans/*.json"), key=lambda path: -int(path.stem))
        plans += [read_plan(path) for path in earlier]
        versions = {p.sweep_version: p for p in reversed(plans) if p.sweep is not None}
        if name == self.own[0]:
            versions.pop(self.own[1], None)
        return list(reversed(versions.values()))

    def _sources(self, plan: Plan) -> Iterator[_Source]:
        if plan.sweep is not None:
            path = ledger_path(self.root.experiment(plan.name).path, plan.sweep_version)
            for trial in Ledger(path).trials:
                scored = [rung for rung, one in trial.outcomes.items() if not one.failed]
                if trial.state in ("COMPLETE", "PRUNED") and not trial.is_taken:
                    runs = tuple(trial.run(plan.sweep, rung) for rung in sorted(scored))
                    rate = trial.arm.train.optimiser.learning_rate
                    yield _Source(model=trial.arm.model, learning_rate=rate, runs=runs,
                                  params=trial.params, state=trial.state)  # fmt: skip
            return
        for run in plan.runs:
            seeds = (run.spec.init_seed, run.spec.data_seed)
            if seeds == (SEED, SEED) and self.root.run(run.hash).result() is not None:
                rate = run.spec.train.optimiser.learning_rate
                yield _Source(model=run.spec.model, learning_rate=rate, runs=(run,))

    def _point(self, source: _Source) -> tuple[dict[str, Any], ArmSpec] | None:
        """The space's parameters for a model, and the arm that they stand for; None outside it."""
        given = [source.params] if source.params is not None else self._guesses(source)
        for params in given:
            try:
                fixed = self.space.fixed(params, "sweep.take")
                arm = self.candidates.resolve(self.space.answers(fixed, "sweep.take"))
            except (UsageError, Rejected):
                continue
            if arm.model == source.model:
                return fixed, arm
        return None

    def _guesses(self, source: _Source) -> Iterator[dict[str, Any]]:
        """Parameters that may stand for a model: each layout of its blocks, with its options."""
        model, spec = source.model, self.sweep.space
        numbers: dict[str, Any] = {}
        if spec.width is not None and len(spec.width) > 1:
            numbers["width"] = model.width
        if spec.mlp_width is not None and len(spec.mlp_width) > 1:
            numbers["mlp_width"] = model.layers[0].mlp_width
        if spec.learning_rate is not None:
            numbers["learning_rate"] = source.learning_rate
        for layout, names in self._layouts(model):
            options = {
                f"{name}.{option}": layer.options[option]
                for name, layer in zip(names, model.layers, strict=True)
                for option, values in spec.options.get(name, {}).items()
                if option in layer.options and not (isinstance(values, tuple) and len(values) == 1)
            }
            yield layout | options | numbers

    def _layouts(self, model: ModelSpec) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
        """Choices of the layout that put a block of the right kind into each layer."""
        layout = self.sweep.space.layout
        kind_of = self.candidates.kind_of
        kinds = [layer.kind for layer in model.layers]
        if layout.slots:
            if len(kinds) not in (layout.depth or ()):
                return
            fitting = {kind: [n for n in layout.slots if kind_of(n) == kind] for kind in set(kinds)}
            if all(len(names) == 1 for names in fitting.values()):
                names = tuple(fitting[kind][0] for kind in kinds)
                depth = {"depth": len(kinds)} if len(layout.depth or ()) > 1 else {}
                yield depth | {f"layer.{i}": name for i, name in enumerate(names)}, names
                return
        alone = Space(SpaceSpec(layout=layout), self.space.attention)
        try:
            for number, (params, found) in enumerate(alone.draws()):
                if number >= LAYOUTS_LOOKED_AT:
                    return
                if not isinstance(found, Rejected) and [kind_of(n) for n in found.names] == kinds:
                    yield params, found.names
        except Endless:
            return

    def _trial(
        self, source: _Source, params: dict[str, Any], arm: ArmSpec, name: str
    ) -> tuple[Trial | None, str]:
        """A source as a trial, or why it is none."""
        code = self.candidates.code(arm.model)
        last = len(self.sweep.rungs) - 1
        ours = [rung_run(arm, self.sweep, rung, seed=SEED, code=code) for rung in range(last + 1)]
        outcomes: dict[int, Outcome] = {}
        why = ""
        for run in source.runs:
            differs = {rung: _difference(spec, run.spec) for rung, spec in enumerate(ours)}
            rung = next((rung for rung, text in differs.items() if not text), None)
            if rung is None:
                why = f"{run.arm} was trained otherwise: {differs[last]}"
                continue
            found = read_outcome(self.root.run(run.hash), self.sweep, self.evaluations)
            if found.failed:
                why = f"{run.arm} was not evaluated as here: {found.failed}"
                continue
            outcomes[rung] = found
        complete = source.state == "COMPLETE" and last in outcomes
        if not outcomes or (source.state == "COMPLETE" and not complete):
            return None, why
        trial = Trial(
            number=-1,
            params=params,
            arm=replace(arm, name="trial"),
            code=code,
            origin=f"{TAKEN}{name}",
            notes={"trial": {}, "study": {}, "dropped": 0},
            rung=max(outcomes),
            outcomes=outcomes,
            state="COMPLETE" if complete else "PRUNED",
            reason="" if complete else f"rung {max(outcomes)} in {name}",
        )
        return trial, ""


def _difference(ours: RunSpec, theirs: RunSpec) -> str:
    """The first thing besides the model in which two trainings differ; empty if there is none."""
    for key, value in _training(ours).items():
        if (other := _training(theirs).get(key)) != value:
            if key == "code":
                return "its source code has changed since"
            return f"{key} was {other}, here it is {value}"
    return ""


def _training(spec: RunSpec) -> dict[str, Any]:
    """What decides a run's weights besides model and seeds; shares of the schedule in steps."""
    schedule = spec.train.schedule
    decay = max(round(schedule.decay * spec.steps), 1)
    stages = {
        "train.schedule": schedule.name,
        "train.schedule.warmup (steps)": round(schedule.warmup * spec.steps),
        "train.schedule.final": schedule.final,
    }
    if schedule.name == "wsd":
        stages["train.schedule.decay (steps)"] = decay
    data = {f"data.{key}": value for key, value in asdict(spec.data).items()}
    optimiser = {
        f"train.optimiser.{key}": value for key, value in asdict(spec.train.optimiser).items()
    }
    return {
        **data,
        "the number of steps": spec.steps,
        **stages,
        **optimiser,
        "train.precision": spec.train.precision,
        "code": spec.code,
    }
