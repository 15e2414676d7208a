"""The plan: arms x seeds, every option resolved, every size counted. Runs nothing.

The only place where a file's words become frozen data. It uses torch's meta device to resolve and
count blocks; what comes after (driver, writer, status, compare) reads the result without torch.
"""

from collections.abc import Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from arch_search.code_hash import code_hash
from arch_search.composition import load_mapping
from arch_search.confounds import find_confounds
from arch_search.confounds.derived import derived_counts
from arch_search.contrasts import declared_interactions, resolve_contrasts
from arch_search.declarations import with_declarations
from arch_search.design import Arm, make_arms
from arch_search.errors import UsageError
from arch_search.experiment import ExperimentFile, SeedsFile, nearest, validate
from arch_search.hold import check_holds, hold_model
from arch_search.model import ModelCounts, count_model
from arch_search.noise import find_noise, find_resolution
from arch_search.pattern import format_pattern, parse_pattern
from arch_search.planned_data import PlannedData, check_data, find_data
from arch_search.resolve import NamedModel, change_layer, name_model, solve_state
from arch_search.spec import (
    ArmSpec,
    DataSpec,
    EvaluationSpec,
    ModelSpec,
    Plan,
    PlannedRun,
    RunSpec,
    TrainSpec,
    content_hash,
)
from arch_search.storage import NAME, Root
from arch_search.tasks.registry import metric_names
from arch_search.tasks.registry import resolve as resolve_evaluations
from blocks.registry import block_class

TRAINING_METRICS = ("train/final_loss", "val/subset_bits_per_byte")


def make_plan(path: Path, root: Root, overrides: Sequence[str] = ()) -> Plan:
    """Read an experiment file into a plan; prepares the corpus if it is not there yet.

    Raises:
        UsageError: anything wrong with the file; nothing has run.
    """
    mapping = load_mapping(path, overrides)
    where = str(path)
    file = validate(mapping, where)
    if not NAME.fullmatch(file.name):
        raise UsageError(
            f"{where}: name {file.name!r} must be letters, digits, '.', '_' and '-', "
            "and begin with a letter or digit"
        )
    evaluations = resolve_evaluations(file.evaluate)
    _check_primary(file, evaluations, where)
    _check_numbers(file, where)
    try:
        arms, notes = _resolve_arms(file, mapping, where, root, evaluations)
        runs = tuple(_runs(file, arms))
        contrasts = resolve_contrasts(file.contrasts, arms)
    except UsageError as error:
        text = str(error)
        raise UsageError(text if text.startswith(where) else f"{where}: {text}") from None
    seeds = len({run.seed for run in runs})
    noise = find_noise(file.noise, arms, file.primary.metric, file.name, root)
    primary = file.primary.resolve()
    plan = Plan(
        name=file.name,
        question=file.question,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        source=yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True),
        arms=arms,
        runs=runs,
        primary=primary,
        evaluations=evaluations,
        log=file.log,
        resources=file.resources,
        tracking_uri=file.tracking.uri,
        notes=notes,
        contrasts=contrasts,
        findings=find_confounds(file, arms, seeds=seeds),
        noise=noise,
        resolution=find_resolution(contrasts, arms, seeds=seeds, noise=noise, primary=primary),
        stopping_rule=file.stopping_rule,
    )
    return with_declarations(plan, root)


def _check_primary(file: ExperimentFile, evaluations: Sequence[EvaluationSpec], where: str) -> None:
    known = [*TRAINING_METRICS, *metric_names(evaluations)]
    if file.primary.metric not in known:
        raise UsageError(
            f"{where}: primary.metric {file.primary.metric!r} is reported by nothing that this "
            f"experiment evaluates; {nearest(file.primary.metric, known)}"
        )


def _check_numbers(file: ExperimentFile, where: str) -> None:
    micro = file.resources.micro_batch
    if micro < 0 or micro > file.data.batch:
        raise UsageError(
            f"{where}: resources.micro_batch is {micro}; expected 1 to data.batch "
            f"({file.data.batch}), or 0 for the whole batch"
        )


def _resolve_arms(
    file: ExperimentFile,
    mapping: dict[str, Any],
    where: str,
    root: Root,
    evaluations: Sequence[EvaluationSpec],
) -> tuple[tuple[ArmSpec, ...], tuple[str, ...]]:
    base = name_model(file)
    made = make_arms(
        file.arms,
        base.names,
        baseline=file.baseline is not None,
        is_attention=lambda name: base.kind_of(name) == "attention",
        solve=lambda block, quantity, knob, target: solve_state(base, block, knob, target),
        interactions=declared_interactions(file.contrasts),
    )
    known: dict[tuple[str, str], PlannedData] = {}
    arms: list[ArmSpec] = []
    notes: list[str] = []
    by_content: dict[str, int] = {}
    target: ModelCounts | None = None
    check_holds(file.hold, list(file.arms.vary))
    for arm in made:
        changed = _with_changes(file, mapping, arm, where) if arm.changes else file
        found = find_data(changed.data, known, root.path)
        resolved = _arm_spec(arm, changed, found)
        check_data(resolved.data, found, evaluations)
        if target is None:
            target = count_model(resolved.model, resolved.data.sequence_length)
        elif file.hold and not arm.changes:
            resolved = _hold(resolved, arm, file, target)
        derived = derived_counts(resolved, found.training_tokens)
        resolved = replace(resolved, counts=resolved.counts | derived)
        content = content_hash(
            [asdict(resolved.model), asdict(resolved.train), asdict(resolved.data)]
        )
        if content in by_content:
            i = by_content[content]
            notes.append(f"arm {arm.name} is the same model as arm {arms[i].name}: run once")
            if not resolved.is_control:
                arms[i] = replace(arms[i], also=(*arms[i].also, resolved.factors))
            continue
        by_content[content] = len(arms)
        arms.append(resolved)
    return tuple(arms), tuple(notes)


def _with_changes(
    file: ExperimentFile, mapping: dict[str, Any], arm: Arm, where: str
) -> ExperimentFile:
    """The file as an explicit arm changes it: nested keys are merged, everything else replaced."""
    if refused := sorted(arm.changes.keys() - {"model", "data", "train"}):
        raise UsageError(
            f"arms.explicit.{arm.name}: an arm may change model, data and train, not {refused[0]!r}"
        )
    return validate(_merged(mapping, arm.changes), f"{where}: arms.explicit.{arm.name}")


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def _hold(arm: ArmSpec, made: Arm, file: ExperimentFile, target: ModelCounts) -> ArmSpec:
    length = arm.data.sequence_length
    try:
        held = hold_model(
            arm.model,
            made.replaced,
            file.hold,
            target,
            length,
            lambda layer, changes: change_layer(layer, changes, width=arm.model.width),
        )
    except UsageError as error:
        raise UsageError(f"arm {arm.name}: {error}") from None
    return replace(arm, model=held.model, counts=_counts(held.model, length), held=held.knobs)


def _counts(model: ModelSpec, length: int) -> dict[str, float]:
    return {name: float(value) for name, value in asdict(count_model(model, length)).items()}


def _arm_spec(arm: Arm, file: ExperimentFile, found: PlannedData) -> ArmSpec:
    names = parse_pattern(file.model.pattern) if arm.changes else arm.layers
    base = NamedModel(file=file, names=names)
    replaced = set(arm.replaced)
    layers = tuple(
        replace(base.layer(name, arm.options), init_salt=arm.init_salt)
        if i in replaced
        else base.layer(name, {})
        for i, name in enumerate(names)
    )
    model = ModelSpec(
        layers=layers,
        width=file.model.width,
        vocabulary=found.vocabulary,
        tie_embeddings=file.model.tie_embeddings,
        norm_eps=file.model.norm_eps,
    )
    data = DataSpec(
        corpus=file.data.corpus,
        tokenizer=file.data.tokenizer,
        sequence_length=file.data.sequence_length,
        batch=file.data.batch,
        manifest=found.manifest.hash if found.manifest else "",
    )
    return ArmSpec(
        name=arm.name,
        factors=arm.factors | (_declared_levels(file) if arm.changes else {}),
        layout=format_pattern(names),
        model=model,
        counts=_counts(model, data.sequence_length),
        is_baseline=arm.is_baseline,
        is_control=arm.is_control,
        replaced=arm.replaced,
        train=TrainSpec(
            tokens=file.train.tokens,
            optimiser=file.train.optimiser,
            schedule=file.train.schedule,
            precision=file.train.precision,
        ),
        data=data,
    )


def _declared_levels(file: ExperimentFile) -> dict[str, Any]:
    """The level of each factor of explicit arms: a key of the file, as [data.sequence_length]."""
    levels: dict[str, Any] = {}
    for name in file.arms.factors:
        found: Any = file
        for part in name.split("."):
            known = list(found) if isinstance(found, dict) else _fields(found)
            if part not in known:
                raise UsageError(
                    f"arms.factors: no key {name!r} ({part!r}); {nearest(part, known)}"
                )
            found = found[part] if isinstance(found, dict) else getattr(found, part)
        levels[name] = found
    return levels


def _fields(value: Any) -> list[str]:
    return [field.name for field in fields(value)] if is_dataclass(value) else []


def _seed_pairs(seeds: int | tuple[int, ...] | SeedsFile) -> list[tuple[int, int, int]]:
    """(replicate, init seed, data seed). A number n means 0 to n-1 for both, in step."""
    if isinstance(seeds, SeedsFile):
        if len(seeds.init) != len(seeds.data) or not seeds.init:
            raise UsageError(
                f"seeds: init lists {len(seeds.init)} and data {len(seeds.data)}; "
                "give as many of one as of the other, at least one"
            )
        return [(i, *pair) for i, pair in enumerate(zip(seeds.init, seeds.data, strict=True))]
    listed = tuple(range(seeds)) if isinstance(seeds, int) else seeds
    if not listed:
        raise UsageError(f"seeds: {seeds!r} is no seed at all; give at least 1")
    if len(set(listed)) < len(listed):
        raise UsageError(f"seeds: {list(listed)} lists a seed twice")
    return [(seed, seed, seed) for seed in listed]


def _runs(file: ExperimentFile, arms: Sequence[ArmSpec]) -> list[PlannedRun]:
    """Seeds outside, arms inside: a block of seeds is complete as early as can be."""
    runs = []
    codes = {
        arm.name: code_hash({block_class(layer.kind).__module__ for layer in arm.model.layers})
        for arm in arms
    }
    for replicate, init_seed, data_seed in _seed_pairs(file.seeds):
        for arm in arms:
            spec = RunSpec(
                model=arm.model,
                data=arm.data,
                train=arm.train,
                init_seed=init_seed,
                data_seed=data_seed,
                code=codes[arm.name],
            )
            runs.append(PlannedRun(arm=arm.name, seed=replicate, hash=spec.hash, spec=spec))
    return runs
