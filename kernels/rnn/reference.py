"""RNN, GRU and LSTM as plain loops over time: the truth that every other backend is tested on.

Heads are independent: head n has its own V x V weights. x and the gates' inputs are (B, T, N, V).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.m2rnn.reference import Clip, clamp_gradient


def by_head(h: Tensor, weight: Tensor) -> Tensor:
    """h W for every head: (B, N, V), (N, V, X) -> (B, N, X)."""
    return torch.einsum("bnv,nvx->bnx", h, weight)


def _scan(
    step: Callable[[int, tuple[Tensor, ...]], tuple[Tensor, ...]],
    steps: int,
    state: tuple[Tensor, ...],
    clip: Clip,
    reset: Tensor | None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Apply `step` over time; the first part of the state is the output."""
    outputs = []
    for t in range(steps):
        if reset is not None:
            state = tuple(torch.where(reset[:, t, None, None], 0.0, part) for part in state)
        new = step(t, state)
        clamped = new if clip == "none" else tuple(clamp_gradient(part) for part in new)
        outputs.append(clamped[0] if clip == "sum" else new[0])
        state = clamped
    return torch.stack(outputs, dim=1), state


def rnn_loop(
    x: Tensor, weight: Tensor, state: Tensor, *, clip: Clip = "none", reset: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """h_t = tanh(h_{t-1} W + x_t). Returns every h (B, T, N, V) and the last (B, N, V)."""

    def step(t: int, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (torch.tanh(by_head(state[0], weight) + x[:, t]),)

    y, (h,) = _scan(step, x.shape[1], (state,), clip, reset)
    return y, h


def gru_loop(
    x: Tensor,
    forget: Tensor,
    recall: Tensor,
    weight: Tensor,
    forget_weight: Tensor,
    recall_weight: Tensor,
    state: Tensor,
    *,
    clip: Clip = "none",
    reset: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The GRU of lm-engine. `recall` is what is usually called the reset gate's input.

    r = σ(h W_r + recall_t);  f = σ(h W_f + forget_t);  z = tanh((r ⊙ h) W + x_t)
    h_t = f ⊙ h_{t-1} + (1 - f) ⊙ z
    """

    def step(t: int, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (h,) = state
        r = torch.sigmoid(by_head(h, recall_weight) + recall[:, t])
        f = torch.sigmoid(by_head(h, forget_weight) + forget[:, t])
        z = torch.tanh(by_head(r * h, weight) + x[:, t])
        return (f * h + (1 - f) * z,)

    y, (h,) = _scan(step, x.shape[1], (state,), clip, reset)
    return y, h


def lstm_loop(
    gates: Tensor,
    weight: Tensor,
    hidden: Tensor,
    cell: Tensor,
    *,
    clip: Clip = "none",
    reset: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """LSTM (Hochreiter and Schmidhuber 1997, with Gers' forget gate).

    (i, f, o, g) = h W + gates_t;  c_t = σ(f) ⊙ c_{t-1} + σ(i) ⊙ tanh(g);  h_t = σ(o) ⊙ tanh(c_t)

    Args:
        gates: (B, T, N, 4 V).   weight: (N, V, 4 V).   hidden, cell: (B, N, V).
    Returns:
        every h (B, T, N, V), the last h and the last c.
    """

    def step(t: int, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        h, c = state
        i, f, o, g = (by_head(h, weight) + gates[:, t]).chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    y, (h, c) = _scan(step, gates.shape[1], (hidden, cell), clip, reset)
    return y, h, c
