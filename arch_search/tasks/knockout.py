"""What a layer does: one mixer at a time taken away, or made to forget, and what that changes.

removed: the mixer's branch adds nothing to the residual stream; its channel mixer stays.
reset_each_token: its state is that of a document's start before every token, so that it mixes
nothing over time and only its other parameters act.   reset_each_segment: the same every `segment`
tokens, counted from a document's start: what it carries further than that.
The model is not trained for it: a layer that others could stand in for may look needed here.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from arch_search.data import Split
from arch_search.model import LanguageModel, Layer
from arch_search.run_settings import EvaluationSpec
from arch_search.spec import DataSpec, ModelSpec
from arch_search.tasks.base import Evaluation, EvaluationContext, Task
from blocks.base import State

Way = Literal["removed", "reset_each_token", "reset_each_segment"]
Entry = str | dict[str, dict[str, Any]]
SEEN = "tokens_since_start"  # beside a mixer's own state while it is made to forget


@dataclass(frozen=True, kw_only=True, slots=True)
class KnockoutOptions:
    """evaluate: what is measured each time, as in an experiment file.   layers: all if empty."""

    evaluate: tuple[Entry, ...] = ({"perplexity": {"documents": 8, "tokens_per_document": 1_024}},)
    ways: Annotated[tuple[Way, ...], Field(min_length=1)] = ("removed", "reset_each_token")
    segment: PositiveInt = 64
    layers: tuple[NonNegativeInt, ...] = ()


class Knockout(Task):
    """The change of each metric by layer; a table, since layers are as many as the model has."""

    Options = KnockoutOptions

    def needs(self, options: KnockoutOptions) -> Literal["corpus", "task", "text"]:
        asked = {_task(spec).needs(_options(spec)) for spec in _inner(options)}
        return "corpus" if "corpus" in asked else "text" if "text" in asked else "task"

    def check(self, split: Split, sequence_length: int, options: KnockoutOptions) -> None:
        for spec in _inner(options):
            _task(spec).check(split, sequence_length, _options(spec))

    def check_run(self, model: ModelSpec, data: DataSpec, options: KnockoutOptions) -> None:
        _layers(len(model.layers), options)
        for spec in _inner(options):
            _task(spec).check_run(model, data, _options(spec))

    def __call__(
        self, model: LanguageModel, context: EvaluationContext, options: KnockoutOptions
    ) -> Evaluation:
        """Measure the whole model, then each layer in each way.

        Raises:
            ValueError: a layer that the model has not.
        """
        layers = _layers(len(model.layers), options)
        whole = _measure(model, context, options)
        names = ("layer", "kind", "way", "metric", "whole", "without", "change")
        rows: dict[str, list[Any]] = {name: [] for name in names}
        for layer in layers:
            for way in options.ways:
                with knocked_out(model, layer, way, segment=options.segment):
                    without = _measure(model, context, options)
                for metric, value in whole.items():
                    change = without[metric] - value
                    kind = model.spec.layers[layer].kind
                    row = (layer, kind, way, metric, value, without[metric], change)
                    for name, cell in zip(names, row, strict=True):
                        rows[name].append(cell)
        segment = f", segments of {options.segment}" if "reset_each_segment" in options.ways else ""
        return Evaluation(
            metrics={},
            tables={"knockout": rows},
            convention=f"one layer at a time, not retrained: {', '.join(options.ways)}{segment}",
        )


def _layers(depth: int, options: KnockoutOptions) -> tuple[int, ...]:
    layers = options.layers or tuple(range(depth))
    if max(layers) >= depth:
        raise ValueError(f"no layer {max(layers)}; the model has 0 to {depth - 1}")
    return layers


def _measure(
    model: LanguageModel, context: EvaluationContext, options: KnockoutOptions
) -> dict[str, float]:
    found: dict[str, float] = {}
    for spec in _inner(options):
        context.tick()
        found |= _task(spec)(model, context, _options(spec)).metrics
    return found


@contextlib.contextmanager
def knocked_out(
    model: LanguageModel, layer: int, way: Way, *, segment: int = 1
) -> Iterator[LanguageModel]:
    """The model with one layer's mixer removed, or reset, while it lasts."""
    found = model.layers[layer]
    assert isinstance(found, Layer)
    period = segment if way == "reset_each_segment" else 1
    handles = _remove(found.mixer) if way == "removed" else _make_forget(found.mixer, period)
    try:
        yield model
    finally:
        for handle in handles:
            handle.remove()


def _remove(mixer: nn.Module) -> list[Any]:
    def nothing(_: nn.Module, given: object, output: tuple[Tensor, State]) -> tuple[Tensor, State]:
        return torch.zeros_like(output[0]), output[1]

    return [mixer.register_forward_hook(nothing)]


def _make_forget(mixer: nn.Module, period: int) -> list[Any]:
    """Reset the state every `period` tokens of a document, wherever pieces and documents begin."""
    seen: list[Tensor] = []

    def before(
        _: nn.Module, given: tuple[Tensor, State | None], named: Mapping[str, Tensor | None]
    ) -> tuple[tuple[Tensor, State | None], dict[str, Tensor]]:
        x, state = given
        start = x.new_zeros(x.shape[0], dtype=torch.int64)
        if state is not None:
            start = state.get(SEEN, start)
            state = {name: value for name, value in state.items() if name != SEEN}
        place = _places(start, x.shape[1], named.get("reset"))
        seen[:] = [place[:, -1] + 1]
        return (x, state), {"reset": place % period == 0}

    def after(_: nn.Module, given: object, output: tuple[Tensor, State]) -> tuple[Tensor, State]:
        return output[0], {**output[1], SEEN: seen[0]}

    return [
        mixer.register_forward_pre_hook(before, with_kwargs=True),
        mixer.register_forward_hook(after),
    ]


def _places(start: Tensor, length: int, reset: Tensor | None) -> Tensor:
    """(B, T): how many tokens of its document stand before each, `start` (B,) before the piece."""
    index = torch.arange(length, device=start.device)
    place = start[:, None] + index
    if reset is None:
        return place
    begun = torch.where(reset, index, -1).cummax(dim=1).values
    return torch.where(begun >= 0, index - begun, place)


def _inner(options: KnockoutOptions) -> tuple[EvaluationSpec, ...]:
    from arch_search.tasks.registry import resolve  # it lists this task

    specs = resolve(options.evaluate)
    if not specs or any(spec.task == "knockout" for spec in specs):
        raise ValueError("knockout.evaluate: name at least one evaluation, and not knockout itself")
    return specs


def _task(spec: EvaluationSpec) -> Task:
    from arch_search.tasks.registry import task

    return task(spec.task)


def _options(spec: EvaluationSpec) -> Any:
    from arch_search.tasks.registry import read_options

    return read_options(spec.task, spec.options)
