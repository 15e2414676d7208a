"""What follows from an arm's specification: sizes, decay and starts of each kind of mixer.

Built on torch's meta device; only planning imports this.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from arch_search.plan_spec import ArmSpec
from arch_search.spec import LayerSpec
from blocks.base import SequenceMixer
from blocks.initialisation import (
    Constant,
    Identity,
    Normal,
    Orthogonal,
    Parameter,
    Role,
    Start,
    named_generator,
)
from blocks.registry import build, resolve_options

DRAWS = 100_000  # of a gate's start, for its quantiles: the slowest hundredth to about 2 %


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """For how many tokens a gate keeps the state at its start, its inputs at zero; W if none."""

    median: float
    slowest: float  # of the slowest hundredth of its gates
    gate: str  # what makes it so


@dataclass(frozen=True, kw_only=True, slots=True)
class MixerFacts:
    """One mixer as it stands in a layer."""

    kind: str
    parameters: int
    state_elements: int  # at the sequence length in use
    grows: bool  # with the sequence, as attention's cache does
    decay: dict[str, bool]  # by parameter name, for those without a role in the recurrence
    scale: dict[str, float]  # root mean square of the declared start, for the same
    recurrence_decayed: bool | None  # None: no matrix carries its state
    recurrence_gain: float | None  # how much of the state W keeps at its start (spectral radius)
    recurrence_start: str
    memory: Memory | None  # None: it has no gate or matrix of a declared role


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmFacts:
    """An arm with the facts of each layer's mixer."""

    arm: ArmSpec
    layers: tuple[MixerFacts, ...]

    def of_kind(self, kind: str) -> list[MixerFacts]:
        return [layer for layer in self.layers if layer.kind == kind]


def derive(arm: ArmSpec) -> ArmFacts:
    """Facts of every layer of an arm."""
    length = arm.data.sequence_length
    layers = tuple(
        mixer_facts(layer, width=arm.model.width, depth=len(arm.model.layers), length=length)
        for layer in arm.model.layers
    )
    return ArmFacts(arm=arm, layers=layers)


def derived_counts(arm: ArmSpec, training_tokens: int | None) -> dict[str, float]:
    """Counts beside `count_model`'s: what is decayed, the state's bytes, passes over the corpus."""
    facts = derive(arm)
    cached = 2 if arm.train.precision == "bfloat16" else 4  # a recurrent state is float32
    state = sum(f.state_elements * (cached if f.grows else 4) for f in facts.layers)
    counts = {"state_bytes": float(state), "steps": float(_steps(arm))}
    if training_tokens:
        counts["epochs"] = arm.train.tokens / training_tokens
    return counts


def _steps(arm: ArmSpec) -> int:
    return -(-arm.train.tokens // (arm.data.batch * arm.data.sequence_length))


def compared_kinds(facts: Sequence[ArmFacts]) -> list[str]:
    """Kinds of mixers that do not stand at the same places in every arm, in order of appearance."""
    kinds = dict.fromkeys(layer.kind for f in facts for layer in f.layers)
    places = {
        kind: {tuple(i for i, layer in enumerate(f.layers) if layer.kind == kind) for f in facts}
        for kind in kinds
    }
    return [kind for kind in kinds if len(places[kind]) > 1]


def mixer_facts(layer: LayerSpec, *, width: int, depth: int, length: int) -> MixerFacts:
    """Facts of one layer's mixer; equal layers are looked at once."""
    options = json.dumps(layer.options, sort_keys=True)
    return _mixer_facts(layer.kind, options, width, depth, length)


@lru_cache(maxsize=4096)
def _mixer_facts(kind: str, options: str, width: int, depth: int, length: int) -> MixerFacts:
    resolved = resolve_options(kind, json.loads(options), width=width)
    with torch.device("meta"):
        mixer = build(kind, resolved, width=width, depth=depth)
    cost = mixer.cost(length)
    declared = mixer.declared_parameters()
    weight = _of_role(declared, "recurrence")
    gain, start = _gain(mixer, weight)
    return MixerFacts(
        kind=kind,
        parameters=cost.parameters,
        state_elements=cost.state_elements + cost.state_elements_per_token * length,
        grows=cost.state_elements_per_token > 0,
        decay={name: p.decay for name, p in declared.items() if not p.role},
        scale={
            name: math.hypot(*parameter.start.moments(mixer.get_parameter(name).shape))
            for name, parameter in declared.items()
            if not parameter.role
        },
        recurrence_decayed=weight[1].decay if weight else None,
        recurrence_gain=gain,
        recurrence_start=start,
        memory=_memory(declared, gain),
    )


def _of_role(declared: dict[str, Parameter], role: Role) -> tuple[str, Parameter] | None:
    return next(((name, p) for name, p in declared.items() if p.role == role), None)


def _gain(mixer: SequenceMixer, weight: tuple[str, Parameter] | None) -> tuple[float | None, str]:
    """The spectral radius of W at its start; of a normal one std sqrt(V), by the circular law."""
    if weight is None:
        return None, ""
    name, parameter = weight
    match parameter.start:
        case Identity(gain=gain):
            return gain, "the identity" if gain == 1 else f"{gain:g} times the identity"
        case Orthogonal(gain=gain):
            return gain, "orthogonal" if gain == 1 else f"{gain:g} times orthogonal"
        case Constant(value=value):
            return abs(value), f"the constant {value:g}"
        case Normal(std=std):
            size = mixer.get_parameter(name).shape[-1]
            return std * math.sqrt(size), f"normal with deviation {std:g}"
        case _:
            return None, ""


def _memory(declared: dict[str, Parameter], gain: float | None) -> Memory | None:
    rate, step = _of_role(declared, "rate"), _of_role(declared, "step")
    if rate and step:
        decay = _draw(rate[1].start, "rate").exp() * torch.nn.functional.softplus(
            _draw(step[1].start, "step")
        )
        return _quantiles(1 / decay, "decay gate")
    if bias := _of_role(declared, "bias"):
        return _quantiles(1 / (1 - torch.sigmoid(_draw(bias[1].start, "bias"))), "biased gate")
    if _of_role(declared, "gate"):
        kept, gate = 0.5, "gate without bias"  # f = sigmoid(0)
    elif gain is not None:
        kept, gate = gain, "no gate"
    else:
        return None
    tokens = 1 / (1 - kept) if kept < 1 else math.inf
    return Memory(median=tokens, slowest=tokens, gate=gate)


def _draw(start: Start, name: str) -> torch.Tensor:
    shape = torch.Size([DRAWS])
    return start.sample(shape, named_generator(0, name, shape)).double()


def _quantiles(tokens: torch.Tensor, gate: str) -> Memory:
    return Memory(
        median=float(tokens.quantile(0.5)), slowest=float(tokens.quantile(0.99)), gate=gate
    )
