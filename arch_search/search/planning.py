"""The plan of a sweep: everything that can be wrong with it is said before anything runs."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import yaml

from arch_search.errors import UsageError
from arch_search.experiment import ArmsFile, ExperimentFile, nearest
from arch_search.hold import check_holds
from arch_search.metric_names import direction
from arch_search.plan_spec import ArmSpec, Plan
from arch_search.planned_arms import resolve_arms
from arch_search.resolve import NamedModel, name_model
from arch_search.run_settings import EvaluationSpec
from arch_search.search.candidates import Candidates, block_names
from arch_search.search.proposals import sampler_factory
from arch_search.search.rungs import rung_run
from arch_search.search.space import Draw, Endless, Rejected, Space
from arch_search.search.study import check_url
from arch_search.search.taken import Taker
from arch_search.sources import run_code
from arch_search.spec import content_hash
from arch_search.storage import Root
from arch_search.sweep_spec import RangeSpec, SamplerSpec, SweepSpec
from arch_search.synthetic.registry import resolved_task
from arch_search.tasks.registry import is_reported
from blocks.registry import block_class

LOOKED_AT = 200  # points of a space that are tried until one is within the limits


def make_sweep_plan(
    file: ExperimentFile,
    mapping: dict[str, Any],
    where: str,
    root: Root,
    evaluations: Sequence[EvaluationSpec],
    known_metrics: Sequence[str],
) -> Plan:
    """The plan of a sweep; its arms and runs come later.

    Raises:
        UsageError: anything wrong with the file; nothing has run.
    """
    assert file.sweep is not None
    _check_file(file)
    check_holds(file.hold, [])
    named = _check_names(file)
    base = _base_arm(file, mapping, where, root, evaluations)
    candidates = Candidates(file=file, sweep=file.sweep, base=base)
    check_objectives(file.sweep, known_metrics, list(base.counts | candidates.counts(base.model)))
    _check_options(file, named)
    sampler_factory(file.sweep.sampler, len(file.sweep.objectives))
    check_url(file.sweep.storage)
    _check_rungs(file.sweep, base)
    space = candidates.space()
    if file.sweep.sampler.name.lower() in ("grid", "bruteforcesampler"):
        _check_listable(space)
    _check_enqueued(file.sweep, space, candidates)
    _check_not_empty(space, candidates)
    codes = [candidates.code(replace(base.model, layers=base.model.layers)), *_codes(file, named)]
    version = _version(file, base, codes)
    taker = Taker(root=root, sweep=file.sweep, own=(file.name, version), candidates=candidates,
                  space=space, evaluations=evaluations)  # fmt: skip
    taken = {name: len(taker.take(name)) for name in file.sweep.take}
    return Plan(
        name=file.name,
        question=file.question,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        source=yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True),
        arms=(base,),
        runs=(),
        primary=file.primary.resolve(),
        evaluations=tuple(evaluations),
        log=replace(file.log, keep_trunk=len(file.sweep.rungs) > 1),
        resources=file.resources,
        tracking_uri=file.tracking.uri,
        stopping_rule=f"{file.sweep.trials} distinct layouts, then their front is looked at again",
        notes=tuple(f"{count} results are taken from {name}" for name, count in taken.items()),
        sweep=file.sweep,
        sweep_version=version,
    )


def _version(file: ExperimentFile, base: ArmSpec, codes: Sequence[str]) -> str:
    """Of all that makes trials comparable; how many there are to be is not among it."""
    assert file.sweep is not None
    sweep = asdict(file.sweep)
    for name in ("trials", "enqueue", "take", "again", "storage"):
        sweep.pop(name)
    if file.sweep.sampler.history == SamplerSpec().history:
        sweep["sampler"].pop("history")  # as before there was such a key
    blocks = {name: dict(options) for name, options in file.model.blocks.items()}
    held = [asdict(hold) for hold in file.hold]
    parts = [sweep, blocks, held, asdict(base.model), asdict(base.train), asdict(base.data), codes]
    return content_hash(parts)


def _codes(file: ExperimentFile, named: NamedModel) -> list[str]:
    kinds = {named.kind_of(name) for name in block_names(file)}
    return [run_code(kinds, resolved_task(file.data.task) if file.data.task else None)]


def _check_file(file: ExperimentFile) -> None:
    given = {
        "arms": file.arms != ArmsFile(),
        "contrasts": bool(file.contrasts),
        "tune": file.tune is not None,
        "report_residue": bool(file.report_residue),
    }
    if wrong := [name for name, is_given in given.items() if is_given]:
        raise UsageError(f"{wrong[0]} is for an ablation; a file has either that or a sweep")
    if file.seeds != 1:
        raise UsageError(
            f"seeds is {file.seeds}: a sweep trains each layout once, all from one seed; fresh "
            "seeds for the best are sweep.again.seeds"
        )
    if file.data.vocabulary is not None:
        raise UsageError("data.vocabulary is for plans that are only read; a sweep needs its data")


def _check_names(file: ExperimentFile) -> NamedModel:
    assert file.sweep is not None
    named = name_model(file)
    layout = file.sweep.space.layout
    for name in block_names(file):
        try:
            named.kind_of(name)
        except UsageError as error:
            raise UsageError(f"sweep.space.layout: {error}") from None
    listed = [("slots", layout.slots), *(("where", c) for c in layout.where.values())]
    for what, choices in listed:
        if len(set(choices)) < len(choices):
            raise UsageError(f"sweep.space.layout.{what}: {', '.join(choices)} has one twice")
    return named


def _check_options(file: ExperimentFile, named: NamedModel) -> None:
    """Every option exists, and each of its values can be built."""
    assert file.sweep is not None
    names = block_names(file)
    for block, options in file.sweep.space.options.items():
        if block not in names:
            raise UsageError(
                f"sweep.space.options: no layer can be {block!r}; {nearest(block, names)}"
            )
        fields = block_class(named.kind_of(block)).Options.__dataclass_fields__
        for option, values in options.items():
            where = f"sweep.space.options.{block}.{option}"
            if option not in fields:
                raise UsageError(f"{where}: {block} has no such option; "
                                 f"{nearest(option, list(fields))}")  # fmt: skip
            ends = [values.low, values.high] if isinstance(values, RangeSpec) else list(values)
            _check_values(where, ends)
            for value in ends:
                try:
                    named.layer(block, {option: value})
                except UsageError as error:
                    raise UsageError(f"{where}: {error}") from None
    for name in ("width", "mlp_width", "learning_rate"):
        values = getattr(file.sweep.space, name)
        if values is not None and not isinstance(values, RangeSpec):
            _check_values(f"sweep.space.{name}", list(values))
    _check_learning_rate(file.sweep)


def _check_values(where: str, values: Sequence[Any]) -> None:
    if not values:
        raise UsageError(f"{where}: there is nothing to choose from")
    for value in values:
        if not isinstance(value, str | int | float | bool | None):
            raise UsageError(f"{where}: {value!r} is no choice; give text, numbers, true or false")
    if len({repr(value) for value in values}) < len(values):
        raise UsageError(f"{where}: {', '.join(map(str, values))} has one twice")


def _check_learning_rate(sweep: SweepSpec) -> None:
    rate = sweep.space.learning_rate
    ends = [rate.low] if isinstance(rate, RangeSpec) else list(rate or ())
    for value in ends:
        if isinstance(value, bool | str) or not value > 0:
            raise UsageError(f"sweep.space.learning_rate: {value!r}; expected numbers above 0")


def check_objectives(sweep: SweepSpec, known: Sequence[str], counts: Sequence[str]) -> None:
    """Raises UsageError for an objective or limit that nothing measures, or that ranks by speed."""
    every = [*known, *(f"count/{name}" for name in counts)]
    for name in (*sweep.objectives, *sweep.limits):
        where = "sweep.objectives" if name in sweep.objectives else "sweep.limits"
        if name.startswith(("throughput/", "memory/")) or name == "train/seconds":
            raise UsageError(
                f"{where}: {name} comes from runs that may share a device; rank by "
                "count/forward_flops_per_token instead, and measure the front's speed apart with "
                "bench throughput"
            )
        if not is_reported(name, every):
            raise UsageError(f"{where}: {name!r} is measured by nothing; {nearest(name, every)}")
    for name, given in sweep.objectives.items():
        better = {1: "maximize", -1: "minimize"}.get(direction(name), given)
        if better != given:
            raise UsageError(
                f"sweep.objectives: {name} is to be {better}d; {given} would look for the worst"
            )


def _base_arm(
    file: ExperimentFile,
    mapping: dict[str, Any],
    where: str,
    root: Root,
    evaluations: Sequence[EvaluationSpec],
) -> ArmSpec:
    """The file's own model: what a hold keeps to. It is trained only if it is a trial."""
    alone = replace(file, baseline={}, arms=ArmsFile(), hold=())
    arms, _ = resolve_arms(alone, mapping, where, root, evaluations)
    return arms[0]


def _check_rungs(sweep: SweepSpec, base: ArmSpec) -> None:
    runs = [rung_run(base, sweep, rung, seed=0, code="") for rung in range(len(sweep.rungs))]
    for i, run in enumerate(runs):
        warmup = round(run.train.schedule.warmup * run.steps)
        decay = max(round(run.train.schedule.decay * run.steps), 1)
        if warmup + decay >= run.steps:
            raise UsageError(
                f"sweep.rungs: rung {i} has {run.steps} steps, {warmup} of them warm-up and "
                f"{decay} decay; give it more tokens"
            )
        if i and run.steps - decay <= runs[i - 1].steps - max(
            round(runs[i - 1].train.schedule.decay * runs[i - 1].steps), 1
        ):
            raise UsageError(f"sweep.rungs: rung {i} is no longer than the one before it")


def _check_listable(space: Space) -> None:
    if space.size() is None:
        raise UsageError(
            "sweep.sampler: grid tries every point, and this space has too many or a range "
            "without step; give lists or steps, or use tpe"
        )


def _check_enqueued(sweep: SweepSpec, space: Space, candidates: Candidates) -> None:
    if len(sweep.enqueue) > sweep.trials:
        raise UsageError(
            f"sweep.enqueue: {len(sweep.enqueue)} layouts for {sweep.trials} trials; allow more"
        )
    for i, given in enumerate(sweep.enqueue):
        where = f"sweep.enqueue[{i}]"
        answers = space.answers(space.fixed(given, where), where)
        try:
            candidates.resolve(answers)
        except Rejected as error:
            raise UsageError(f"{where}: {error}") from None


def _check_not_empty(space: Space, candidates: Candidates) -> None:
    """Raises UsageError if none of a listable space's first points can be trained."""
    why = "it has no point"
    try:
        for number, (_, found) in enumerate(space.draws()):
            if number >= LOOKED_AT:
                return
            if isinstance(found, Draw):
                try:
                    candidates.resolve(found)
                except Rejected as error:
                    found = error
                else:
                    return
            why = str(found)
    except Endless:
        return
    raise UsageError(f"sweep.space: nothing in it is within its limits; the last point: {why}")
