"""Names in a layer pattern, looked up among the file's own blocks and those registered."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from arch_search.errors import UsageError
from arch_search.experiment import ExperimentFile, nearest
from arch_search.pattern import parse_pattern
from arch_search.spec import LayerSpec
from blocks.registry import block_class, build, canonical_kind, resolve_options


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedModel:
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
            _build_on_meta(kind, options, width=model.width, depth=len(self.names))
        except ValueError as error:
            raise UsageError(f"block {name}: {error}") from None
        return LayerSpec(
            kind=kind,
            options=_frozen(options),
            mlp_width=model.mlp.width,
            experts=model.mlp.experts,
        )


def change_layer(layer: LayerSpec, changes: Mapping[str, Any], *, width: int) -> LayerSpec:
    """A resolved layer with some options changed. Raises UsageError if they do not fit."""
    try:
        options = resolve_options(layer.kind, {**layer.options, **changes}, width=width)
    except ValueError as error:
        raise UsageError(f"block {layer.kind}: {error}") from None
    return replace(layer, options=_frozen(options))


def _frozen(options: Any) -> dict[str, Any]:
    """Options as JSON gives them back."""
    return json.loads(json.dumps(asdict(options)))


def _build_on_meta(kind: str, options: Any, *, width: int, depth: int) -> Any:
    """A block without memory, to count and to check that its options fit."""
    with torch.device("meta"):
        return build(kind, options, width=width, depth=depth)


def name_model(file: ExperimentFile) -> NamedModel:
    """The file's model, every name in it known. Raises UsageError naming the nearest."""
    try:
        names = parse_pattern(file.model.pattern)
    except ValueError as error:
        raise UsageError(f"model.pattern: {error}") from None
    model = NamedModel(file=file, names=names)
    for name in dict.fromkeys([*names, *file.model.blocks, *file.arms.with_]):
        model.kind_of(name)
    return model


def solve_state(base: NamedModel, block: str, knob: str, target: int) -> int:
    """The value of a whole-number option whose state comes nearest to `target` elements."""
    kind, width, depth = base.kind_of(block), base.file.model.width, len(base.names)
    if knob not in block_class(kind).Options.__dataclass_fields__:
        known = nearest(knob, list(block_class(kind).Options.__dataclass_fields__))
        raise UsageError(f"arms.vary.state.by: {block} has no option {knob!r}; {known}")

    def elements(value: int) -> int:
        layer = base.layer(block, {knob: value})
        options = resolve_options(kind, layer.options, width=width)
        return _build_on_meta(kind, options, width=width, depth=depth).cost(1).state_elements

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
