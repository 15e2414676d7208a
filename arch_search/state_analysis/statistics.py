"""Numbers of one recurrent state, by head; tables are lists of rows."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

OUTLIER = 6.0  # a channel this many times the median root mean square of its head's stands out
BINS = 40

Row = dict[str, Any]


def recurrent_parts(state: dict[str, Tensor], start: dict[str, Tensor]) -> Iterator[str]:
    """The parts of a state that carry memory in a fixed size: no last inputs, no growing cache.

    start: the state before the first token, or, of a layer that makes its own there, after the
    first piece.
    """
    for name, part in state.items():
        fixed = name in start and part.shape == start[name].shape
        is_memory = not name.startswith(("conv", "attn"))  # as fla calls inputs and keys
        if is_memory and part.is_floating_point() and fixed and part.ndim > 1:
            yield name


def by_heads(part: Tensor) -> Tensor:
    """(B, S), (B, N, V) or (B, N, K, V) -> float64 (B, N, K, V)."""
    part = part.detach().double()
    if part.ndim == 2:
        part = part[:, None]
    return part[:, :, None] if part.ndim == 3 else part.flatten(3)


def state_rows(state: Tensor) -> list[Row]:
    """Mean, variance, norm and outlier channels of each head of a state (B, N, K, V).

    Mean and variance are over the K V elements, the norm is Frobenius', all means over the batch. A
    channel is a row (one of K) or a column (one of V).
    """
    mean, variance = state.mean(dim=(2, 3)), state.var(dim=(2, 3), correction=0)
    norm = state.square().sum(dim=(2, 3)).sqrt()
    rows = state.square().mean(dim=(0, 3)).sqrt()  # (N, K)
    columns = state.square().mean(dim=(0, 2)).sqrt()  # (N, V)
    return [
        {
            "head": n,
            "mean": float(mean[:, n].mean()),
            "variance": float(variance[:, n].mean()),
            "norm": float(norm[:, n].mean()),
            **_outliers(rows[n], "row"),
            **_outliers(columns[n], "column"),
        }
        for n in range(state.shape[1])
    ]


def _outliers(sizes: Tensor, name: str) -> Row:
    median = float(sizes.median())
    largest = int(sizes.argmax())
    over = float(sizes[largest]) / median if median > 0 else float("nan")
    return {
        f"outlier_{name}s": int((sizes > OUTLIER * median).sum()) if median > 0 else 0,
        f"largest_{name}": largest,
        f"largest_{name}_over_median": over,
    }


def histogram_rows(states: dict[int, Tensor]) -> list[Row]:
    """Counts of state values by head at some positions, in bins that heads and positions share.

    Args:
        states: by position, (B, N, K, V).
    """
    found: list[Row] = []
    every = torch.cat([state.flatten() for state in states.values()])
    edge = float(every[every.isfinite()].abs().max()) if every.isfinite().any() else 0.0
    edges = np.linspace(-(edge or 1.0), edge or 1.0, BINS + 1)
    for n in range(next(iter(states.values())).shape[1]):
        for at, state in states.items():
            value = state[:, n].flatten().cpu().numpy()
            counts, _ = np.histogram(value[np.isfinite(value)], edges)
            found += [
                {"position": at, "head": n, "low": low, "high": high, "count": int(count)}
                for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
                if count
            ]
    return found


def influence(states: Tensor) -> Tensor:
    """How far a perturbed twin's state is off, as a share of the state's norm: (N,).

    Args:
        states: (2 B, N, K, V), the perturbed twins behind the others.
    """
    own, other = states.chunk(2)
    norm = own.square().sum(dim=(2, 3)).sqrt()
    off = (own - other).square().sum(dim=(2, 3)).sqrt()
    return torch.where(norm > 0, off / norm, torch.zeros_like(norm)).mean(dim=0)
