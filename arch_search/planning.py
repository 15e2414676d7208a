"""The plan: arms x seeds, every option resolved, every size counted. Runs nothing.

The only place where a file's words become frozen data. It uses torch's meta device to resolve and
count blocks; what comes after (driver, writer, status, compare) reads the result without torch.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from arch_search.code_hash import code_hash
from arch_search.data import Manifest, prepare
from arch_search.design import Arm, make_arms
from arch_search.errors import UsageError
from arch_search.experiment import ExperimentFile, SeedsFile, load_mapping, nearest, validate
from arch_search.model import count_model
from arch_search.pattern import format_pattern, parse_pattern
from arch_search.spec import (
    ArmSpec,
    DataSpec,
    EvaluationSpec,
    LayerSpec,
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
from blocks.registry import block_class, build, canonical_kind, resolve_options

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
        arms, notes = _resolve_arms(file, mapping, where, root)
        runs = tuple(_runs(file, arms))
    except UsageError as error:
        text = str(error)
        raise UsageError(text if text.startswith(where) else f"{where}: {text}") from None
    return Plan(
        name=file.name,
        question=file.question,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        source=yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True),
        arms=arms,
        runs=runs,
        primary=file.primary.resolve(),
        evaluations=evaluations,
        log=file.log,
        resources=file.resources,
        tracking_uri=file.tracking.uri,
        notes=notes,
    )


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
    file: ExperimentFile, mapping: dict[str, Any], where: str, root: Root
) -> tuple[tuple[ArmSpec, ...], tuple[str, ...]]:
    base = _resolve_model(file)
    made = make_arms(
        file.arms,
        base.names,
        baseline=file.baseline is not None,
        is_attention=lambda name: base.kind_of(name) == "attention",
        solve=lambda block, quantity, knob, target: _solve_state(base, block, knob, target),
    )
    manifests: dict[tuple[str, str], Manifest] = {}
    arms: list[ArmSpec] = []
    notes: list[str] = []
    by_content: dict[str, str] = {}
    for arm in made:
        changed = _with_changes(file, mapping, arm, where) if arm.changes else file
        resolved = _arm_spec(arm, changed, _manifest(changed, manifests, root))
        content = content_hash(
            [asdict(resolved.model), asdict(resolved.train), asdict(resolved.data)]
        )
        if content in by_content:
            notes.append(f"arm {arm.name} is the same model as arm {by_content[content]}: run once")
            continue
        by_content[content] = arm.name
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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Model:
    """A model file with its names looked up."""

    file: ExperimentFile
    names: tuple[str, ...]

    def kind_of(self, name: str) -> str:
        """The registry's kind of a name in the pattern. Raises UsageError naming the nearest."""
        given = self.file.model.blocks.get(name)
        try:
            if given is None:
                return canonical_kind(name)
            if not isinstance(given.get("kind"), str):
                raise UsageError(f"model.blocks.{name}: give its kind, as in {{kind: m2rnn}}")
            return canonical_kind(given["kind"])
        except ValueError as error:
            named = ", ".join(self.file.model.blocks)
            own = f"; model.blocks has {named}" if named else ""
            raise UsageError(f"{error}{own}") from None

    def layer(self, name: str, changes: dict[str, Any]) -> LayerSpec:
        """A layer of this name with every option spelled out."""
        kind, model = self.kind_of(name), self.file.model
        given = {k: v for k, v in model.blocks.get(name, {}).items() if k != "kind"}
        try:
            options = resolve_options(kind, {**given, **changes}, width=model.width)
            build_on_meta(kind, options, width=model.width, depth=len(self.names))
        except ValueError as error:
            raise UsageError(f"block {name}: {error}") from None
        frozen = json.loads(json.dumps(asdict(options)))  # as it will be read back
        return LayerSpec(kind=kind, options=frozen, mlp_width=model.mlp.width)


def build_on_meta(kind: str, options: Any, *, width: int, depth: int) -> Any:
    """A block without memory, to count and to check that its options fit."""
    import torch

    with torch.device("meta"):
        return build(kind, options, width=width, depth=depth)


def _resolve_model(file: ExperimentFile) -> _Model:
    try:
        names = parse_pattern(file.model.pattern)
    except ValueError as error:
        raise UsageError(f"model.pattern: {error}") from None
    model = _Model(file=file, names=names)
    for name in dict.fromkeys([*names, *file.model.blocks, *file.arms.with_]):
        model.kind_of(name)
    return model


def _solve_state(base: _Model, block: str, knob: str, target: int) -> int:
    """The value of a whole-number option whose state comes nearest to `target` elements."""
    kind, width, depth = base.kind_of(block), base.file.model.width, len(base.names)
    if knob not in block_class(kind).Options.__dataclass_fields__:
        known = nearest(knob, list(block_class(kind).Options.__dataclass_fields__))
        raise UsageError(f"arms.vary.state.by: {block} has no option {knob!r}; {known}")

    def elements(value: int) -> int:
        layer = base.layer(block, {knob: value})
        options = resolve_options(kind, layer.options, width=width)
        return build_on_meta(kind, options, width=width, depth=depth).cost(1).state_elements

    high = 1
    while elements(high) < target:
        high *= 2
        if high > 2**16:
            raise UsageError(f"arms.vary.state: no {knob} of {block} reaches {target} elements")
    low = max(high // 2, 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if elements(middle) < target else (low, middle)
    return min((low, high), key=lambda value: abs(elements(value) - target))


def _manifest(file: ExperimentFile, known: dict[tuple[str, str], Manifest], root: Root) -> Manifest:
    key = (file.data.corpus, file.data.tokenizer)
    if key not in known:
        try:
            known[key] = prepare(*key, root.path)
        except ValueError as error:
            raise UsageError(f"data: {error}") from None
    return known[key]


def _arm_spec(arm: Arm, file: ExperimentFile, manifest: Manifest) -> ArmSpec:
    names = parse_pattern(file.model.pattern) if arm.changes else arm.layers
    base = _Model(file=file, names=names)
    replaced = set(arm.replaced)
    layers = tuple(
        base.layer(name, arm.options if i in replaced else {}) for i, name in enumerate(names)
    )
    model = ModelSpec(
        layers=layers,
        width=file.model.width,
        vocabulary=manifest.vocabulary,
        tie_embeddings=file.model.tie_embeddings,
        norm_eps=file.model.norm_eps,
    )
    data = DataSpec(
        corpus=file.data.corpus,
        tokenizer=file.data.tokenizer,
        sequence_length=file.data.sequence_length,
        batch=file.data.batch,
        manifest=manifest.hash,
    )
    return ArmSpec(
        name=arm.name,
        factors=arm.factors,
        layout=format_pattern(names),
        model=model,
        counts={k: float(v) for k, v in asdict(count_model(model, data.sequence_length)).items()},
        is_baseline=arm.is_baseline,
        train=TrainSpec(
            tokens=file.train.tokens,
            optimiser=file.train.optimiser,
            schedule=file.train.schedule,
            precision=file.train.precision,
        ),
        data=data,
    )


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


def with_tracking(plan: Plan, uri: str) -> Plan:
    """The plan with another MLflow address."""
    return replace(plan, tracking_uri=uri)
