"""From a point of the space to a model: names looked up, quantities held, limits checked.

Counts of a model are the sum of its layers' counts, each counted once: a sweep looks at thousands.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import yaml

from arch_search.errors import UsageError
from arch_search.experiment import ExperimentFile, nearest, validate
from arch_search.hold import hold_model
from arch_search.model import ModelCounts, count_model
from arch_search.pattern import format_pattern, parse_pattern
from arch_search.plan_spec import ArmSpec, Plan
from arch_search.resolve import NamedModel, change_layer, name_model
from arch_search.search.space import Draw, Rejected, Space
from arch_search.sources import run_code
from arch_search.spec import LayerSpec, ModelSpec, content_hash
from arch_search.sweep_spec import SweepSpec

GIB_PER_PARAMETER = 16 / 2**30  # float32 weights, gradients and two moments


@dataclass(kw_only=True)
class Candidates:
    """Resolves draws of one sweep. Remembers layers and their counts."""

    file: ExperimentFile
    sweep: SweepSpec
    base: ArmSpec
    _layers: dict[str, LayerSpec] = field(default_factory=dict)
    _counts: dict[str, ModelCounts] = field(default_factory=dict)
    _codes: dict[frozenset[str], str] = field(default_factory=dict)

    @classmethod
    def of_plan(cls, plan: Plan) -> "Candidates":
        """Those of a plan, whose source is the file with its defaults and overrides."""
        assert plan.sweep is not None
        file = validate(yaml.safe_load(plan.source), plan.name)
        return cls(file=file, sweep=plan.sweep, base=plan.arms[0])

    def space(self) -> Space:
        """The space, which knows the names that stand for attention."""
        model = name_model(self.file)
        layout = self.sweep.space.layout
        names = {*layout.slots, *layout.counts, *model.file.model.blocks}
        names |= {n for choices in layout.where.values() for n in choices}
        attention = {name for name in names if model.kind_of(name) == "attention"}
        return Space(self.sweep.space, frozenset(attention))

    def resolve(self, draw: Draw) -> ArmSpec:
        """The arm that a draw stands for, at the whole budget.

        Raises:
            Rejected: options that do not fit, a hold that cannot be met, or a limit passed.
        """
        try:
            model = self._model(draw)
            counts = self.counts(model)
            held: dict[str, int] = {}
            if self.file.hold and _differing(model, self.base.model):
                model, held = self._hold(model)
                counts = self.counts(model)
        except UsageError as error:
            raise Rejected(str(error)) from None
        self._check_limits(counts)
        train = self.base.train
        if draw.learning_rate is not None:
            optimiser = replace(train.optimiser, learning_rate=draw.learning_rate)
            train = replace(train, optimiser=optimiser)
        content = content_hash([asdict(model), asdict(train), asdict(self.base.data)])
        return replace(
            self.base,
            name="trial",
            factors={"content": content},
            layout=format_pattern(draw.names),
            model=model,
            counts=counts,
            is_baseline=False,
            held=held,
            train=train,
            replaced=tuple(_differing(model, self.base.model)),
        )

    def kind_of(self, name: str) -> str:
        """The registry's kind of a block that the space names."""
        return name_model(self.file).kind_of(name)

    def kinds(self) -> set[str]:
        """Every block, by its kind, that a trial may have."""
        return {self.kind_of(name) for name in block_names(self.file)}

    def code(self, model: ModelSpec) -> str:
        """The hash of the source that a model is trained with."""
        kinds = frozenset(layer.kind for layer in model.layers)
        if kinds not in self._codes:
            self._codes[kinds] = run_code(kinds, self.base.data.task)
        return self._codes[kinds]

    def counts(self, model: ModelSpec) -> dict[str, float]:
        """Exact sizes, as `count_model` gives them, from those of the layers."""
        length = self.base.data.sequence_length
        parts = [self._counted(replace(model, layers=(layer,)), length) for layer in model.layers]
        rest = self._rest(model, parts[0], length)
        names = [f.name for f in fields(ModelCounts) if f.name != "embedding_parameters"]
        total = {
            name: float(sum(getattr(part, name) for part in parts))
            - (len(parts) - 1) * float(rest.get(name, 0.0))
            for name in names
        }
        total["embedding_parameters"] = float(parts[0].embedding_parameters)
        total["training_gib"] = total["parameters"] * GIB_PER_PARAMETER
        return total

    def _counted(self, model: ModelSpec, length: int) -> ModelCounts:
        key = content_hash(asdict(model))
        if key not in self._counts:
            self._counts[key] = count_model(model, length)
        return self._counts[key]

    def _rest(self, model: ModelSpec, one: ModelCounts, length: int) -> dict[str, float]:
        """What every model has besides its layers: two of a layer less one of it, subtracted."""
        first = model.layers[0]
        two = self._counted(replace(model, layers=(first, first)), length)
        return {
            name: 2 * float(getattr(one, name)) - float(getattr(two, name))
            for name in (f.name for f in fields(ModelCounts))
        }

    def _model(self, draw: Draw) -> ModelSpec:
        given = self.file.model
        mlp = replace(given.mlp, width=draw.mlp_width or given.mlp.width)
        width = draw.width or given.width
        file = replace(self.file, model=replace(given, width=width, mlp=mlp))
        named = NamedModel(file=file, names=draw.names)
        layers = tuple(self._layer(named, name, draw.options.get(name, {})) for name in draw.names)
        return replace(self.base.model, layers=layers, width=width)

    def _layer(self, named: NamedModel, name: str, options: Mapping[str, Any]) -> LayerSpec:
        model = named.file.model
        key = content_hash([name, dict(options), model.width, model.mlp.width])
        if key not in self._layers:
            self._layers[key] = named.layer(name, dict(options))
        return self._layers[key]

    def _hold(self, model: ModelSpec) -> tuple[ModelSpec, dict[str, int]]:
        length = self.base.data.sequence_length
        held = hold_model(
            model,
            _differing(model, self.base.model),
            self.file.hold,
            count_model(self.base.model, length),
            length,
            lambda layer, changes: change_layer(layer, changes, width=model.width),
        )
        return held.model, held.knobs

    def _check_limits(self, counts: Mapping[str, float]) -> None:
        for name, limit in self.sweep.limits.items():
            known = name.removeprefix("count/")
            if name.startswith("count/") and limit.excess(counts[known]) > 0:
                raise Rejected(f"{known} is {counts[known]:,g}, beyond the limit {limit}")


def _differing(model: ModelSpec, base: ModelSpec) -> list[int]:
    """The layers that are not the base's; all of them where depth or width differ."""
    if len(model.layers) != len(base.layers) or model.width != base.width:
        return list(range(len(model.layers)))
    pairs = zip(model.layers, base.layers, strict=True)
    return [i for i, (ours, theirs) in enumerate(pairs) if ours != theirs]


def block_names(file: ExperimentFile) -> list[str]:
    """Every block name that the space may put into a layer."""
    assert file.sweep is not None
    layout = file.sweep.space.layout
    names = [*layout.slots, *layout.counts, *([layout.fill] if layout.fill else [])]
    if layout.pattern is not None:
        try:
            pattern = parse_pattern(layout.pattern)
        except ValueError as error:
            raise UsageError(f"sweep.space.layout.pattern: {error}") from None
        if unused := [name for name in layout.where if name not in pattern]:
            raise UsageError(
                f"sweep.space.layout.where: {unused[0]!r} stands nowhere in the pattern; "
                f"{nearest(unused[0], sorted(set(pattern)))}"
            )
        names += [name for name in pattern if name not in layout.where]
        names += [name for choices in layout.where.values() for name in choices]
    return list(dict.fromkeys(names))
