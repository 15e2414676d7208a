"""The M²RNN recurrence as a plain loop over time: the truth that every other backend is tested on.

arXiv 2603.14360, Eq. 10-12. Written to be read and differentiated by autograd, not to be fast.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Nonlinearity = Literal["tanh", "identity", "softsign", "relu", "hard_tanh", "norm_clip"]
Clip = Literal["none", "carry", "sum"]
Write = Literal["outer", "delta"]

CLIP_BOUND = 1.0  # the published kernels clamp each element of the carried gradient to [-1, 1]


def apply_nonlinearity(z: Tensor, name: Nonlinearity) -> Tensor:
    """phi of a pre-activation (..., K, V). `norm_clip` bounds the norm of each row by 1."""
    match name:
        case "tanh":
            return torch.tanh(z)
        case "identity":
            return z
        case "softsign":
            return F.softsign(z)
        case "relu":
            return F.relu(z)
        case "hard_tanh":
            return F.hardtanh(z)
        case "norm_clip":
            return z / z.norm(dim=-1, keepdim=True).clamp(min=1.0)


class _ClampGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h: Tensor) -> Tensor:
        return h.view_as(h)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad.clamp(-CLIP_BOUND, CLIP_BOUND)


def clamp_gradient(h: Tensor) -> Tensor:
    """The identity, whose gradient is clamped element by element to [-1, 1]."""
    return _ClampGradient.apply(h)  # type: ignore[return-value]


def mix_values(h: Tensor, weight: Tensor | None) -> Tensor:
    """H W for a state (B, N, K, V): W dense (N, V, V), diagonal (N, V) or the identity (None)."""
    if weight is None:
        return h
    return h * weight[:, None, :] if weight.ndim == 2 else h @ weight


def m2rnn_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    f: Tensor,
    weight: Tensor | None,
    h: Tensor,
    *,
    gate_weight: Tensor | None = None,
    nonlinearity: Nonlinearity = "tanh",
    write: Write = "outer",
) -> tuple[Tensor, Tensor]:
    """One step of every head: y_t and H_t from H_{t-1}.

    Args:
        q, k: (B, N, K).   v: (B, N, V).   f: (B, N).   weight, gate_weight: as in `m2rnn_loop`.
        h: (B, N, K, V), the state before the step.
    Returns:
        y (B, N, V) and the state after the step (B, N, K, V).
    """
    written = v if write == "outer" else v - torch.einsum("bnk,bnkv->bnv", k, h)
    z = mix_values(h, weight) + k[..., :, None] * written[..., None, :]
    z = apply_nonlinearity(z, nonlinearity)
    if gate_weight is None:
        gate = f[..., None, None]
    else:
        gate = torch.sigmoid(f[..., None] + torch.einsum("bnkv,nv->bnk", h, gate_weight))[..., None]
    h = gate * h + (1 - gate) * z
    return torch.einsum("bnk,bnkv->bnv", q, h), h


def m2rnn_loop(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    forget: Tensor,
    weight: Tensor | None,
    state: Tensor,
    *,
    gate_weight: Tensor | None = None,
    nonlinearity: Nonlinearity = "tanh",
    write: Write = "outer",
    clip: Clip = "none",
    reset: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Scan over time with every head spelled out; arguments as in `kernels.m2rnn.m2rnn_scan`.

    Args:
        query, key: (B, T, N, K).   value: (B, T, N, V).   forget: (B, T, N).
        weight: (N, V, V), (N, V) for a diagonal, None for the identity.
        state: (B, N, K, V).   gate_weight: (N, V) or None.   reset: (B, T) bool or None.
    Returns:
        output (B, T, N, V) and the last state (B, N, K, V).
    """
    h, outputs = state, []
    for t in range(query.shape[1]):
        if reset is not None:
            h = torch.where(reset[:, t, None, None, None], 0.0, h)
        y, h_new = m2rnn_step(
            query[:, t], key[:, t], value[:, t], forget[:, t], weight, h,
            gate_weight=gate_weight, nonlinearity=nonlinearity, write=write,
        )  # fmt: skip
        if clip == "sum":  # R = clip(C + q uᵀ): the readout's gradient is clamped as well
            h_new = clamp_gradient(h_new)
            y = torch.einsum("bnk,bnkv->bnv", query[:, t], h_new)
        elif clip == "carry":  # R = clip(C) + q uᵀ: only what comes from the future is
            h_new = clamp_gradient(h_new)
        h = h_new
        outputs.append(y)
    return torch.stack(outputs, dim=1), h
