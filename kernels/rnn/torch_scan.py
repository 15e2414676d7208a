"""RNN, GRU and LSTM in torch with hand-written backward passes: the CPU's default.

Layout (T, N, B, V), so that a step's products are one batched product over the heads. What a step
saves is vectors, so that every step is kept; everything that is not serial is done for all steps at
once, outside the loops.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.m2rnn.reference import CLIP_BOUND, Clip


def rnn_torch(
    x: Tensor, weight: Tensor, state: Tensor, *, clip: Clip = "none", reset: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The arguments and results of `reference.rnn_loop`."""
    y, h = _Rnn.apply(_time_first(x), weight, _heads_first(state), _keep(reset, x), clip)  # type: ignore[misc]
    return y.permute(2, 0, 1, 3), h.transpose(0, 1)


def gru_torch(
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
    """The arguments and results of `reference.gru_loop`."""
    gates = _time_first(torch.cat([forget, recall], dim=-1))
    gate_weight = torch.cat([forget_weight, recall_weight], dim=-1)
    y, h = _Gru.apply(
        _time_first(x), gates, weight, gate_weight, _heads_first(state), _keep(reset, x), clip
    )  # type: ignore[misc]
    return y.permute(2, 0, 1, 3), h.transpose(0, 1)


def lstm_torch(
    gates: Tensor,
    weight: Tensor,
    hidden: Tensor,
    cell: Tensor,
    *,
    clip: Clip = "none",
    reset: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The arguments and results of `reference.lstm_loop`."""
    y, h, c = _Lstm.apply(
        _time_first(gates), weight, _heads_first(hidden), _heads_first(cell),
        _keep(reset, gates), clip,
    )  # type: ignore[misc]  # fmt: skip
    return y.permute(2, 0, 1, 3), h.transpose(0, 1), c.transpose(0, 1)


def _time_first(x: Tensor) -> Tensor:
    return x.permute(1, 2, 0, 3).contiguous()


def _heads_first(state: Tensor) -> Tensor:
    return state.transpose(0, 1).contiguous()


def _keep(reset: Tensor | None, like: Tensor) -> Tensor | None:
    """(T, 1, B, 1): 0 where the state is reset, else 1."""
    return None if reset is None else (~reset).to(like.dtype).T[:, None, :, None].contiguous()


def _take_carry(r: Tensor, carry: Tensor, clip: Clip) -> None:
    """dL/dh_t from the output's share `r` and the carried gradient, in place."""
    if clip == "carry":
        r.add_(carry.clamp_(-CLIP_BOUND, CLIP_BOUND))
    else:
        r.add_(carry)
        if clip == "sum":
            r.clamp_(-CLIP_BOUND, CLIP_BOUND)


def _weight_gradient(h: Tensor, d: Tensor) -> Tensor:
    """sum over time and batch of hᵀ d: (T, N, B, V), (T, N, B, X) -> (N, V, X)."""
    return h.transpose(0, 1).flatten(1, 2).mT @ d.transpose(0, 1).flatten(1, 2)


def _copy(gradient: Tensor) -> Tensor:
    return gradient.clone(memory_format=torch.contiguous_format)


class _Rnn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, h, keep, clip: Clip):
        y, past = x.clone(), torch.empty_like(x)
        for t in range(x.shape[0]):
            torch.mul(h, 1 if keep is None else keep[t], out=past[t])
            h = y[t].baddbmm_(past[t], weight).tanh_()
        ctx.save_for_backward(y, past, weight, keep)
        ctx.clip = clip
        return y, h.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, dh):  # type: ignore[override]
        y, past, weight, keep = ctx.saved_tensors
        D, carry, slope, transposed = _copy(dy), _copy(dh), 1 - y * y, weight.mT
        for t in reversed(range(y.shape[0])):
            _take_carry(D[t], carry, ctx.clip)
            D[t].mul_(slope[t])
            torch.bmm(D[t], transposed, out=carry)
            if keep is not None:
                carry.mul_(keep[t])
        return D, _weight_gradient(past, D), carry, None, None


class _Gru(torch.autograd.Function):
    """Gates are laid out as (forget, recall) along the last axis."""

    @staticmethod
    def forward(ctx, x, gates, weight, gate_weight, h, keep, clip: Clip):
        V = x.shape[-1]
        z, gates = x.clone(), gates.clone()
        past, y, recalled = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
        for t in range(x.shape[0]):
            torch.mul(h, 1 if keep is None else keep[t], out=past[t])
            f, r = gates[t].baddbmm_(past[t], gate_weight).sigmoid_().split(V, dim=-1)
            torch.mul(r, past[t], out=recalled[t])
            z[t].baddbmm_(recalled[t], weight).tanh_()
            h = torch.lerp(z[t], past[t], f, out=y[t])
        ctx.save_for_backward(z, gates, past, recalled, weight, gate_weight, keep)
        ctx.clip = clip
        return y, h.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, dh):  # type: ignore[override]
        z, gates, past, recalled, weight, gate_weight, keep = ctx.saved_tensors
        f, r = (g.contiguous() for g in gates.chunk(2, dim=-1))
        R, carry, D, G = _copy(dy), _copy(dh), torch.empty_like(z), torch.empty_like(gates)
        G_f, G_r = G.chunk(2, dim=-1)
        through, forgetting = (1 - f) * (1 - z * z), (past - z) * f * (1 - f)
        recalling = past * r * (1 - r)
        transposed, gate_transposed = weight.mT, gate_weight.mT
        for t in reversed(range(z.shape[0])):
            _take_carry(R[t], carry, ctx.clip)
            torch.mul(R[t], through[t], out=D[t])
            torch.mul(R[t], forgetting[t], out=G_f[t])
            d_recalled = torch.bmm(D[t], transposed)
            torch.mul(d_recalled, recalling[t], out=G_r[t])
            torch.mul(R[t], f[t], out=carry)
            carry.addcmul_(d_recalled, r[t]).baddbmm_(G[t], gate_transposed)
            if keep is not None:
                carry.mul_(keep[t])
        return D, G, _weight_gradient(recalled, D), _weight_gradient(past, G), carry, None, None


class _Lstm(torch.autograd.Function):
    """Gates are laid out as (input, forget, output, candidate) along the last axis."""

    @staticmethod
    def forward(ctx, gates, weight, h, c, keep, clip: Clip):
        gates, V = gates.clone(), h.shape[-1]
        shape = (*gates.shape[:-1], V)
        past_h, past_c, y, bounded = (gates.new_empty(shape) for _ in range(4))
        for t in range(gates.shape[0]):
            torch.mul(h, 1 if keep is None else keep[t], out=past_h[t])
            torch.mul(c, 1 if keep is None else keep[t], out=past_c[t])
            a = gates[t].baddbmm_(past_h[t], weight)
            a[..., : 3 * V].sigmoid_()
            a[..., 3 * V :].tanh_()
            i, f, o, g = a.split(V, dim=-1)
            c = (f * past_c[t]).addcmul_(i, g)
            h = torch.mul(o, torch.tanh(c, out=bounded[t]), out=y[t])
        ctx.save_for_backward(gates, past_h, past_c, bounded, weight, keep)
        ctx.clip = clip
        return y, h.clone(), c

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, dh, dc):  # type: ignore[override]
        gates, past_h, past_c, bounded, weight, keep = ctx.saved_tensors
        i, f, o, g = (gate.contiguous() for gate in gates.chunk(4, dim=-1))
        R, carry, carry_c, G = _copy(dy), _copy(dh), _copy(dc), torch.empty_like(gates)
        G_i, G_f, G_o, G_g = G.chunk(4, dim=-1)
        to_cell, to_output = o * (1 - bounded * bounded), bounded * o * (1 - o)
        to_i, to_f, to_g = g * i * (1 - i), past_c * f * (1 - f), i * (1 - g * g)
        transposed = weight.mT
        for t in reversed(range(gates.shape[0])):
            _take_carry(R[t], carry, ctx.clip)
            if ctx.clip != "none":
                carry_c.clamp_(-CLIP_BOUND, CLIP_BOUND)
            torch.mul(R[t], to_output[t], out=G_o[t])
            carry_c.addcmul_(R[t], to_cell[t])
            for gate, slope in ((G_i, to_i), (G_f, to_f), (G_g, to_g)):
                torch.mul(carry_c, slope[t], out=gate[t])
            carry_c.mul_(f[t])
            torch.bmm(G[t], transposed, out=carry)
            if keep is not None:
                carry.mul_(keep[t])
                carry_c.mul_(keep[t])
        return G, _weight_gradient(past_h, G), carry, carry_c, None, None
