"""A model's states through time: one pass in pieces, looked at where they meet."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from arch_search.losses import token_losses_and_states
from arch_search.model import LanguageModel
from arch_search.state_analysis.layers import mixers_of
from arch_search.state_analysis.statistics import (
    Row,
    by_heads,
    histogram_rows,
    influence,
    recurrent_parts,
    state_rows,
)
from blocks.base import Drives, SequenceMixer, State


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """Tables, a row for each layer, head and position (of the last token of a piece, from 1 on).

    losses: mean loss of the piece's targets.   states: see `statistics.state_rows`.
    histogram: counts of state values.   drives: mean, variance and largest size of each input of
    the recurrence in the piece.   memory: what is left of the first token: `product` of the gates
    behind it (`kind`: whether that is exact or a bound) and the measured `influence`: by how much
    of its norm the state moves when the first token is another.
    """

    losses: pd.DataFrame
    states: pd.DataFrame
    histogram: pd.DataFrame
    drives: pd.DataFrame
    memory: pd.DataFrame


@dataclass(slots=True)
class _Seen:
    """What one layer's mixer was given in a piece."""

    x: Tensor | None = None
    state: State | None = None


@dataclass(slots=True)
class _Layer:
    index: int
    kind: str
    mixer: SequenceMixer
    seen: _Seen = field(default_factory=_Seen)
    log_kept: Tensor | None = None  # (B, N) since the first token
    snapshots: dict[str, dict[int, Tensor]] = field(default_factory=dict)


@torch.inference_mode()
def trace_states(
    model: LanguageModel, tokens: Tensor, *, piece: int, snapshots: tuple[int, ...] = (),
    seed: int = 0, tick: Callable[[], None] = lambda: None,
) -> Trace:  # fmt: skip
    """Run over tokens (B, L + 1) in pieces of `piece` with the state carried.

    Each sequence runs beside a twin that differs in its first token alone. A layer without a state
    of a fixed size, as attention, has no rows.

    Args:
        snapshots: positions near which histograms are taken; the last one is always among them.
    """
    was_training = model.training
    model.eval()
    twins = tokens.clone()
    other = torch.Generator().manual_seed(seed)
    shift = torch.randint(1, model.spec.vocabulary, (len(tokens),), generator=other)
    twins[:, 0] = (twins[:, 0] + shift.to(tokens.device)) % model.spec.vocabulary
    both = torch.cat([tokens, twins])
    layers = [
        _Layer(index=i, kind=spec.kind, mixer=mixer)
        for i, (spec, mixer) in enumerate(zip(model.spec.layers, mixers_of(model), strict=True))
    ]
    length = tokens.shape[1] - 1
    ends = [min(start + piece, length) for start in range(0, length, piece)]
    wanted = {min(ends, key=lambda end: abs(end - at)) for at in (*snapshots, length)}
    tables: dict[str, list[Row]] = {"losses": [], "states": [], "drives": [], "memory": []}
    starts = model.initial_states(len(both), tokens.device)
    states, start = None, 0
    with _watched(layers):
        for end in ends:
            tick()
            loss, states = token_losses_and_states(
                model, both[:, start:end], both[:, start + 1 : end + 1], states
            )
            mean = float(loss[: len(tokens)].mean())
            tables["losses"].append({"first": start, "position": end, "loss": mean})
            starts = [begun or state for begun, state in zip(starts, states, strict=True)]
            for layer, state, begun in zip(layers, states, starts, strict=True):
                _look(layer, state, begun, start, end, tables, keep=end in wanted)
            start = end
    model.train(was_training)
    counts = [
        {"layer": layer.index, "kind": layer.kind, "part": part, **row}
        for layer in layers
        for part, taken in layer.snapshots.items()
        for row in histogram_rows(taken)
    ]
    frames = {name: pd.DataFrame(rows) for name, rows in tables.items()}
    return Trace(**frames, histogram=pd.DataFrame(counts))


@contextmanager
def _watched(layers: list[_Layer]) -> Iterator[None]:
    """Keep what each mixer is given while this lasts."""

    def keep(seen: _Seen) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            seen.x, seen.state = given[0], given[1] if len(given) > 1 else named.get("state")

        return hook

    handles = [
        layer.mixer.register_forward_pre_hook(keep(layer.seen), with_kwargs=True)
        for layer in layers
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _look(
    layer: _Layer, state: State, begun: State, start: int, end: int,
    tables: dict[str, list[Row]], *, keep: bool,
) -> None:  # fmt: skip
    """Rows of one layer at the end of a piece."""
    at = {"layer": layer.index, "kind": layer.kind, "position": end}
    moved: Tensor | None = None
    for part in recurrent_parts(state, begun):
        heads = by_heads(state[part])
        own = heads[: len(heads) // 2]
        tables["states"] += [{**at, "part": part, **row} for row in state_rows(own)]
        moved = influence(heads) if part == "state" or moved is None else moved
        if keep:
            layer.snapshots.setdefault(part, {})[end] = own.cpu()
    if moved is None:
        return
    assert layer.seen.x is not None
    half = len(layer.seen.x) // 2
    before = layer.seen.state and {name: part[:half] for name, part in layer.seen.state.items()}
    drives = layer.mixer.drives(layer.seen.x[:half], before)
    left = None
    if drives is not None:
        tables["drives"] += [{**at, **row} for row in _drive_rows(drives)]
        left = _kept(layer, drives, first=start == 0)
    for n, influenced in enumerate(moved.tolist()):
        product = None if left is None else float(left[n])
        kind = drives.memory if drives is not None and left is not None else None
        row = {"head": n, "product": product, "kind_of_product": kind, "influence": influenced}
        tables["memory"].append({**at, **row})


def _drive_rows(drives: Drives) -> Iterator[Row]:
    for name, values in drives.inputs.items():
        wide = values.double()
        mean, largest = wide.mean(dim=(0, 1, 3)), wide.abs().amax(dim=(0, 1, 3))
        variance = wide.var(dim=(0, 1, 3), correction=0)
        for n in range(values.shape[2]):
            yield {
                "input": name,
                "head": n,
                "mean": float(mean[n]),
                "variance": float(variance[n]),
                "largest": float(largest[n]),
            }


def _kept(layer: _Layer, drives: Drives, *, first: bool) -> Tensor | None:
    """The product of the gates since the first token, by head, a mean over the batch.

    Summed as logarithms: a product of thousands of factors near 1 loses its digits.
    """
    if drives.log_keep is None:
        return None
    added = drives.log_keep[:, 1 if first else 0 :].double().sum(dim=1)
    layer.log_kept = added if layer.log_kept is None else layer.log_kept + added
    return layer.log_kept.exp().mean(dim=0)
