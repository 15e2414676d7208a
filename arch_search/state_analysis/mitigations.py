"""Changes to the recurrence in inference that let a model forget (arXiv 2410.07145, v1).

Where a block's state makes one meaningless, it is refused with the reason.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from arch_search.model import LanguageModel
from arch_search.state_analysis.layers import mixers_of
from arch_search.state_analysis.statistics import by_heads, recurrent_parts
from blocks.attention import Attention
from blocks.base import SequenceMixer, State
from blocks.linear_state import Inputs, LinearState, Recurrence
from blocks.mamba2 import Mamba2

NOT_LINEAR = (
    "its state is not a weighted sum of what was written, so single writes can be neither weakened "
    "nor taken out; run the last tokens from an empty state instead"
)


class Mitigation:
    """One change, put into every layer that has a recurrent state."""

    name: ClassVar[str]

    @property
    def label(self) -> str:
        """The name with what tells it from others of its kind, for tables."""
        return self.name

    def refuse(self, mixer: SequenceMixer) -> str:
        """Why this mixer cannot be changed so; empty if it can."""
        return "" if isinstance(mixer, LinearState) else NOT_LINEAR

    def install(self, mixer: SequenceMixer, layer: int) -> Callable[[], None]:
        """Change a mixer; returns what undoes it."""
        assert isinstance(mixer, LinearState)
        mixer.recurrence = self.recurrence(mixer)
        return lambda: setattr(mixer, "recurrence", None)

    def recurrence(self, mixer: LinearState) -> Recurrence:
        """What a linear recurrence is replaced by."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, slots=True)
class ForgetMore(Mitigation):
    """a' = keep a for the decay and write times what is written: forget more, remember less.

    Published: 0.9999 and 0.75 (on B, in which the write of Mamba-2 is linear). In a delta rule the
    correction b k kᵀ stays whole and v is scaled.
    """

    name: ClassVar[str] = "forget"
    keep: float = 0.9999
    write: float = 0.75

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1 or not 0 < self.write <= 1:
            raise ValueError(
                f"forget: keep {self.keep}, write {self.write}; expected both above 0, at most 1"
            )

    @property
    def label(self) -> str:
        return f"forget {self.keep:g}, {self.write:g}"

    def recurrence(self, mixer: LinearState) -> Recurrence:
        def run(inputs: Inputs, state: State | None, reset: Tensor | None):
            changed = {
                **inputs,
                "log_decay": inputs["log_decay"] + torch.tensor(self.keep).log().item(),
                "value": inputs["value"] * self.write,
            }
            return mixer.scan(changed, state, reset)

        return run


@dataclass(frozen=True, kw_only=True, slots=True)
class ConstantStep(Mitigation):
    """dt' = factor dt: the baseline that only stretches time (LongMamba of January 2024)."""

    name: ClassVar[str] = "step"
    factor: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.factor <= 1:
            raise ValueError(f"step: factor {self.factor}; expected above 0, at most 1")

    @property
    def label(self) -> str:
        return f"step {self.factor:g}"

    def refuse(self, mixer: SequenceMixer) -> str:
        return "" if isinstance(mixer, Mamba2) else "only Mamba-2 has a step size dt"

    def recurrence(self, mixer: LinearState) -> Recurrence:
        def run(inputs: Inputs, state: State | None, reset: Tensor | None):
            scaled = {name: inputs[name] * self.factor for name in ("log_decay", "value")}
            return mixer.scan({**inputs, **scaled}, state, reset)  # value is dt x

        return run


@dataclass(frozen=True, kw_only=True, slots=True)
class Window(Mitigation):
    """The exact state of the last `tokens` tokens, as a difference of two states.

    S_t = (what the last r tokens wrote) + A_t … A_{t-r+1} S_{t-r}, so reading both and subtracting
    leaves the window. For Mamba-2 the product is a number, for a delta rule a matrix, which is
    applied to the query (`LinearState.pull_back`). A second scan runs r tokens behind the first.
    """

    name: ClassVar[str] = "window"
    tokens: int

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"window: {self.tokens} tokens; expected at least 1")

    @property
    def label(self) -> str:
        return f"window {self.tokens}"

    def recurrence(self, mixer: LinearState) -> Recurrence:
        r = self.tokens

        def run(inputs: Inputs, state: State | None, reset: Tensor | None):
            if reset is not None:
                raise ValueError("window: not defined over packed documents; leave reset out")
            y, after = mixer.scan(inputs, state, None)
            joined = {name: _behind(name, part, state, r) for name, part in inputs.items()}
            length = len(y[0])
            late = {name: part[:, :length] for name, part in joined.items()}
            late["query"] = mixer.pull_back(joined, r)
            if late["query"].shape[2] != late["key"].shape[-2]:  # keys that heads share
                late["key"] = late["key"].repeat_interleave(
                    late["query"].shape[2] // late["key"].shape[-2], dim=-2
                )
            old = None if state is None else {"state": state["window.state"]}
            gone, late_after = mixer.scan(late, old, None)
            kept = {f"window.{name}": part[:, length:] for name, part in joined.items()}
            return y - gone, {**after, "window.state": late_after["state"], **kept}

        return run


def _behind(name: str, part: Tensor, state: State | None, r: int) -> Tensor:
    """A piece's inputs with the r tokens before it; before the first, tokens that do nothing."""
    if state is None or f"window.{name}" not in state:
        before = part.new_zeros(len(part), r, *part.shape[2:])
    else:
        before = state[f"window.{name}"]
    return torch.cat([before, part], dim=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class NormaliseState(Mitigation):
    """S <- S p / |S| where a head's Frobenius norm |S| exceeds its cap p, every so many tokens.

    p is `multiple` times the head's own of `caps`, one tensor (N,) a layer, from `norm_caps`. With
    `every` 1 after each update, as published; the recurrence is then no longer linear and runs
    token by token.
    """

    name: ClassVar[str] = "norm"
    caps: tuple[Tensor | None, ...]
    multiple: float = 1.0
    every: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.multiple < math.inf or self.every < 1:
            raise ValueError(
                f"norm: multiple {self.multiple:g}, every {self.every} tokens; expected a finite "
                "multiple above 0 and at least 1 token"
            )

    @property
    def label(self) -> str:
        return f"norm {self.multiple:g}" + (f" every {self.every}" if self.every > 1 else "")

    def refuse(self, mixer: SequenceMixer) -> str:
        return "" if "state" in mixer.initial_state(1) else "it names no state"

    def install(self, mixer: SequenceMixer, layer: int) -> Callable[[], None]:
        forward, norms = mixer.forward, self.caps[layer]
        assert norms is not None
        cap = norms * self.multiple

        def run(x: Tensor, state: State | None = None, *, reset: Tensor | None = None):
            outputs = []
            for start in range(0, x.shape[1], self.every):
                at = slice(start, start + self.every)
                y, state = forward(x[:, at], state, reset=None if reset is None else reset[:, at])
                state = {**state, "state": _capped(state["state"], cap)}
                outputs.append(y)
            return torch.cat(outputs, dim=1), state

        mixer.forward = run  # type: ignore[method-assign]
        return lambda: delattr(mixer, "forward")


def _capped(state: Tensor, cap: Tensor) -> Tensor:
    norm = by_heads(state).square().sum(dim=(2, 3)).sqrt()  # (B, N)
    scale = torch.where(norm > cap, cap / norm, torch.ones_like(norm)).to(state.dtype)
    return state * scale.view(*scale.shape, *[1] * (state.ndim - 2))


@torch.inference_mode()
def norm_caps(model: LanguageModel, tokens: Tensor) -> tuple[Tensor | None, ...]:
    """Each head's norm after tokens (B, T) of a length that the model was trained on.

    A mean over the batch, one (N,) a layer; None for a layer without a state.
    """
    _, states = model(tokens)
    starts = model.initial_states(len(tokens), tokens.device)
    caps: list[Tensor | None] = []
    for state, start in zip(states, starts, strict=True):
        if "state" not in recurrent_parts(state, start):
            caps.append(None)
            continue
        norm = by_heads(state["state"]).square().sum(dim=(2, 3)).sqrt()
        caps.append(norm.mean(dim=0))
    return tuple(caps)


@contextmanager
def mitigated(model: LanguageModel, mitigation: Mitigation | None) -> Iterator[LanguageModel]:
    """The model with a mitigation in every recurrent layer while this lasts; attention stays.

    A state from before is not to be carried in, nor one from within carried out.

    Raises:
        ValueError: a layer for which it is not defined, with the reason; or no layer at all.
    """
    undo: list[Callable[[], None]] = []
    try:
        if mitigation is not None:
            for i, layer in changed_layers(model, mitigation):
                undo.append(mitigation.install(layer, i))
        yield model
    finally:
        for restore in undo:
            restore()


def changed_layers(model: LanguageModel, mitigation: Mitigation) -> list[tuple[int, SequenceMixer]]:
    """The mixers that a mitigation would change. Raises ValueError as `mitigated`."""
    found = []
    for i, mixer in enumerate(mixers_of(model)):
        if isinstance(mixer, Attention):
            continue
        if reason := mitigation.refuse(mixer):
            kind = model.spec.layers[i].kind
            raise ValueError(f"{mitigation.name} is not defined for layer {i} ({kind}): {reason}")
        found.append((i, mixer))
    if not found:
        raise ValueError(f"{mitigation.name}: the model has no recurrent layer to change")
    return found
