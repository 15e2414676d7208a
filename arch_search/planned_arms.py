"""The arms of a plan: names looked up, options spelled out, quantities held, sizes counted."""

from collections.abc import Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from typing import Any

from arch_search.composition import TAKEN_WHOLE
from arch_search.confounds.derived import derived_counts
from arch_search.contrasts import declared_interactions, declared_subsets
from arch_search.design import Arm, make_arms
from arch_search.errors import UsageError
from arch_search.experiment import DataFile, ExperimentFile, nearest, validate
from arch_search.hold import QUANTITIES, check_holds, hold_model
from arch_search.model import ModelCounts, count_model
from arch_search.pattern import format_pattern
from arch_search.plan_spec import ArmSpec
from arch_search.planned_data import (
    PlannedData,
    check_data,
    check_decoder,
    check_evaluations,
    data_spec,
    find_data,
)
from arch_search.resolve import NamedModel, change_layer, name_model, solve_state
from arch_search.run_settings import EvaluationSpec
from arch_search.spec import ModelSpec, TrainSpec, content_hash
from arch_search.starting import resolve_start
from arch_search.storage import Root


def resolve_arms(
    file: ExperimentFile,
    mapping: dict[str, Any],
    where: str,
    root: Root,
    evaluations: Sequence[EvaluationSpec],
) -> tuple[tuple[ArmSpec, ...], tuple[str, ...]]:
    """Every arm of the file, equal models once, and notes on those left out.

    Raises:
        UsageError: an arm that cannot be built, held or trained.
    """
    base = name_model(file)
    made = make_arms(
        file.arms,
        base.names,
        baseline=file.baseline is not None,
        is_attention=lambda name: base.kind_of(name) == "attention",
        solve=lambda block, quantity, knob, target: solve_state(base, block, knob, target),
        interactions=declared_interactions(file.contrasts),
        subsets=declared_subsets(file.contrasts),
    )
    known: dict[str, PlannedData] = {}
    arms: list[ArmSpec] = []
    notes: list[str] = []
    by_content: dict[str, int] = {}
    target: ModelCounts | None = None
    check_holds(file.hold, [*file.arms.vary, *file.arms.factors])
    for arm in made:
        changed = _with_changes(file, mapping, arm, where) if arm.changes else file
        if arm.length:
            changed = replace(changed, data=_at_length(changed.data, arm.length))
        found = find_data(changed.data, known, root.path)
        resolved = _arm_spec(arm, changed, found)
        if changed.train.start:
            start = resolve_start(root, changed.train.start, resolved.model, arm=arm.name)
            resolved = replace(resolved, train=replace(resolved.train, start=start))
        check_data(resolved.data, found, evaluations)
        check_decoder(resolved.model, resolved.data)
        check_evaluations(resolved.model, resolved.data, evaluations, arm=resolved.name)
        if target is None:
            target = count_model(resolved.model, resolved.data.sequence_length)
        else:
            resolved = _with_replaced(resolved, arms[0])
            if file.hold and not _is_held(resolved, file, target):
                resolved = _hold(resolved, file, target)
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


def _at_length(data: DataFile, length: int) -> DataFile:
    """Rows of another length, as many that a step has as many tokens."""
    tokens = data.sequence_length * data.batch
    if tokens % length:
        raise UsageError(
            f"arms.lengths: data.batch x data.sequence_length = {tokens:,} tokens a step, which "
            f"are no whole number of rows of {length}"
        )
    return replace(data, sequence_length=length, batch=tokens // length)


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
        both = both and key not in TAKEN_WHOLE
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def _with_replaced(arm: ArmSpec, base: ArmSpec) -> ArmSpec:
    """A written-out arm with the layers whose mixer is not the base's; all, if depths differ."""
    if "arm" not in arm.factors:
        return arm
    layers, before = arm.model.layers, base.model.layers
    if len(layers) != len(before):
        return replace(arm, replaced=tuple(range(len(layers))))
    mixers = [(layer.kind, layer.options) for layer in layers]
    theirs = [(layer.kind, layer.options) for layer in before]
    differ = [i for i, mixer in enumerate(mixers) if mixer != theirs[i]]
    return replace(arm, replaced=tuple(differ))


def _is_held(arm: ArmSpec, file: ExperimentFile, target: ModelCounts) -> bool:
    """Whether a written-out arm needs no knob turned, or has no layer that one could turn."""
    if "arm" not in arm.factors:
        return False
    needs_layers = any(hold.by.startswith("replaced.") for hold in file.hold)
    counts = count_model(arm.model, arm.data.sequence_length)
    off = [
        abs(getattr(counts, QUANTITIES[name]) / getattr(target, QUANTITIES[name]) - 1) > allowed
        for hold in file.hold
        for name in QUANTITIES
        if (allowed := getattr(hold, name)) is not None
    ]
    return not any(off) or (needs_layers and not arm.replaced)


def _hold(arm: ArmSpec, file: ExperimentFile, target: ModelCounts) -> ArmSpec:
    length = arm.data.sequence_length
    try:
        held = hold_model(
            arm.model,
            arm.replaced,
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
    try:
        base = name_model(file) if arm.changes else NamedModel(file=file, names=arm.layers)
    except UsageError as error:
        raise UsageError(f"arms.explicit.{arm.name}: {error}") from None
    replaced = set(arm.replaced)
    layers = tuple(
        replace(base.layer(name, arm.options), init_salt=arm.init_salt)
        if i in replaced
        else base.layer(name, {})
        for i, name in enumerate(base.names)
    )
    model = ModelSpec(
        layers=layers,
        width=file.model.width,
        vocabulary=found.vocabulary,
        tie_embeddings=file.model.tie_embeddings,
        norm_eps=file.model.norm_eps,
        decoder=file.model.decoder,
    )
    data = data_spec(file.data, found)
    return ArmSpec(
        name=arm.name,
        factors=arm.factors | (_declared_levels(file) if arm.changes else {}),
        layout=format_pattern(base.names),
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
            truncate=file.train.truncate,
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
        if is_dataclass(found) and not isinstance(found, type):  # a group of keys
            found = asdict(found)
        levels[name] = found
    return levels


def _fields(value: Any) -> list[str]:
    return [field.name for field in fields(value)] if is_dataclass(value) else []
