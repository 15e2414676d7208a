"""All of an M²RNN layer between its two projections, as one operator: five launches forward.

The convolution with SiLU (`triton_convolution`), the forget gate (`triton_gate`), the scan, and
the value residual with output gate and norm (`gated_norm.in_one`) read slices of the projection and
of one tensor (q, k, v), and their backwards write slices of one gradient: nothing is split, joined
or copied between them, and the residual's part of dv is added where dv is summed.
"""

# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
# (operators get their methods from a decorator)
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from kernels.gated_norm import in_one
from kernels.m2rnn import fast_scan, triton_scan
from kernels.m2rnn.triton_gate import decay_gate, decay_gate_back
from kernels.triton_convolution import TAPS, convolve, convolve_back

ALIGNED = 16  # numbers: rows as wide as a multiple of this are read four at a time


@dataclass(frozen=True, kw_only=True, slots=True)
class Widths:
    """Where the parts of a token's projection lie: q, k, v, the output gate, a, zeros."""

    query_heads: int
    key_heads: int
    heads: int  # N: of v, of the output gate, of the state
    K: int
    V: int
    forget_heads: int

    @property
    def channels(self) -> list[int]:
        """Of q, k and v, which the convolution mixes."""
        return [self.query_heads * self.K, self.key_heads * self.K, self.heads * self.V]

    @property
    def parts(self) -> list[int]:
        """(q, k, v), the output gate, a, and what fills the row up."""
        used = [sum(self.channels), self.heads * self.V, self.forget_heads]
        return [*used, -sum(used) % ALIGNED]

    def numbers(self) -> list[int]:
        """As the operator takes them."""
        heads = [self.query_heads, self.key_heads, self.heads]
        return [*heads, self.K, self.V, self.forget_heads]


def _widths(sizes: Sequence[int]) -> Widths:
    Nq, Nk, N, K, V, Nf = sizes
    return Widths(query_heads=Nq, key_heads=Nk, heads=N, K=K, V=V, forget_heads=Nf)


def m2rnn_layer(
    projected: Tensor, taps: Tensor, A_log: Tensor, dt_bias: Tensor, weight: Tensor | None,
    residual: Tensor | None, norm: Tensor, *, widths: Widths, nonlinearity: str, clip: str,
    eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """w RMS((y + D v) SiLU(g)), y the scan of q, k, v = SiLU(convolution) and f of `triton_gate`.

    Args:
        projected: (B, T, sum(widths.parts)).   taps: (channels of q, k, v; W), W at most TAPS.
        A_log, dt_bias: (Nf,).   weight: as `m2rnn_scan` takes it.
        residual: D (N, V) or None.   norm: w (N V,).
    Returns:
        (B, T, N V) in the projection's dtype, and the last state (B, N, K, V), float32.
    Raises:
        ValueError: there are more than TAPS taps, or the projection is not as wide as its parts.
    """
    if taps.shape[1] > TAPS:
        raise ValueError(f"the convolution has {taps.shape[1]} taps; its kernel takes {TAPS}")
    if projected.shape[-1] != (wide := sum(widths.parts)):
        raise ValueError(f"the projection is {projected.shape[-1]} wide; its parts are {wide}")
    residual = None if residual is None else residual.flatten()
    inputs = (projected, taps, A_log, dt_bias, weight, residual, norm)
    save = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
    output, last, *_ = _forward(*inputs, widths.numbers(), nonlinearity, clip, eps, save)
    return output, last


def _heads(qkv: Tensor, widths: Widths) -> list[Tensor]:
    """q, k and v by heads, as views of (B, T, at least their channels)."""
    starts = [0, *accumulate(widths.channels)]
    sizes = (widths.K, widths.K, widths.V)
    return [
        qkv[..., start:end].unflatten(-1, (-1, size))
        for start, end, size in zip(starts, starts[1:], sizes, strict=False)
    ]


def _new_channels(projected: Tensor, widths: Widths) -> Tensor:
    """Memory for q, k and v of each token, its rows aligned."""
    channels = sum(widths.channels)
    return projected.new_empty(*projected.shape[:2], channels + -channels % ALIGNED)


@torch.library.custom_op("arch_search::m2rnn_layer", mutates_args=())
def _forward(
    projected: Tensor, taps: Tensor, A_log: Tensor, dt_bias: Tensor, weight: Tensor | None,
    residual: Tensor | None, norm: Tensor, sizes: Sequence[int], phi: str, clip: str, eps: float,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Output, last state, and for the backward: (q, k, v), f (B, Nf, T), y, and kept states if
    `save`."""
    widths = _widths(sizes)
    (B, _, _), N, K, V = projected.shape, widths.heads, widths.K, widths.V
    mixed, gate, a, _ = projected.split(widths.parts, dim=-1)
    qkv = _new_channels(projected, widths)
    convolve(mixed, taps.contiguous(), None, qkv[..., : mixed.shape[-1]], silu=True)
    f = decay_gate(a, A_log, dt_bias)
    q, k, v = _heads(qkv, widths)
    start = projected.new_zeros(B, N, K, V, dtype=torch.float32)
    y, last, borders = triton_scan.forward(
        q, k, v, f, weight, start, None, None, phi, False, clip, save
    )
    value = None if residual is None else v.flatten(2)
    output = in_one.run_forward(y.flatten(2), value, residual, gate, norm, eps)
    return output, last, qkv, f.transpose(1, 2), y, borders


@_forward.register_fake
def _(projected, taps, A_log, dt_bias, weight, residual, norm, sizes, phi, clip, eps, save):
    widths = _widths(sizes)
    (B, T, _), N, K, V = projected.shape, widths.heads, widths.K, widths.V
    q, k, v = _heads(qkv := _new_channels(projected, widths), widths)
    f = projected.new_empty(B, widths.forget_heads, T, dtype=torch.float32)
    start = f.new_empty(B, N, K, V)
    y, last, borders = triton_scan.forward(
        q, k, v, f.transpose(1, 2), weight, start, None, None, phi, False, clip, save
    )
    return projected.new_empty(B, T, N * V), last, qkv, f, y, borders


@torch.library.custom_op("arch_search::m2rnn_layer_backward", mutates_args=())
def _backward(
    projected: Tensor, taps: Tensor, A_log: Tensor, dt_bias: Tensor, weight: Tensor | None,
    residual: Tensor | None, norm: Tensor, qkv: Tensor, f: Tensor, y: Tensor, borders: Tensor,
    d_output: Tensor, d_last: Tensor, sizes: Sequence[int], phi: str, clip: str, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of the projection, and in float32 of taps, A_log, dt_bias, weight (empty if none),
    residual and norm."""
    widths = _widths(sizes)
    f = f.transpose(1, 2)
    mixed, gate, a, _ = projected.split(widths.parts, dim=-1)
    d_projected = projected.new_empty(projected.shape)
    d_mixed, d_gate, d_a, rest = d_projected.split(widths.parts, dim=-1)
    rest.zero_()
    q, k, v = _heads(qkv, widths)
    value = None if residual is None else v.flatten(2)
    dy, _, d_norm, d_residual = in_one.run_backward(
        y.flatten(2), value, residual, gate, norm, d_output, eps, d_gate, passed=True
    )
    d_qkv = _new_channels(projected, widths)
    df = torch.empty_like(f, memory_format=torch.contiguous_format)
    factors = None if residual is None else residual.view(widths.heads, widths.V)
    d_weight = _scan_back(
        (q, k, v, f, weight), borders, dy.view(y.shape), d_last, [*_heads(d_qkv, widths), df],
        factors, phi, clip,
    )  # fmt: skip
    d_A, d_dt = decay_gate_back(a, A_log, dt_bias, f, df, d_a)
    d_channels = d_qkv[..., : mixed.shape[-1]]
    d_taps, _ = convolve_back(mixed, taps.contiguous(), None, d_channels, d_mixed, silu=True)
    return d_projected, d_taps, d_A, d_dt, d_weight, d_residual, d_norm


def _scan_back(
    inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None], borders: Tensor, dy: Tensor,
    d_last: Tensor, into: list[Tensor], residual: Tensor | None, phi: str, clip: str,
) -> Tensor:  # fmt: skip
    """Fills `into` with the gradients of q, k, v (of y + D v) and f; the gradient of W."""
    query, key, value, forget, weight = inputs
    if fast_scan.covers(query, value, None, phi, False):
        whole = None if weight is None else weight.contiguous()
        grads = fast_scan.run_backward(
            query, key, value, forget, whole, None, borders, dy, d_last, phi, clip, into=into,
            residual=residual,
        )  # fmt: skip
        return grads[4]
    *grads, d_weight, _, _ = triton_scan.backward(
        *inputs, None, None, borders, dy, d_last, phi, False, clip
    )
    for target, grad in zip(into, grads, strict=True):
        target.copy_(grad)
    if residual is not None:
        into[2].add_(residual * dy)
    return d_weight


@_backward.register_fake
def _(
    projected, taps, A_log, dt_bias, weight, residual, norm, qkv, f, y, borders, d_output, d_last,
    sizes, phi, clip, eps,
):  # fmt: skip
    def wide(x: Tensor) -> Tensor:
        return x.new_empty(x.shape, dtype=torch.float32)

    d_weight = f.new_empty(0) if weight is None else wide(weight)
    grads = [wide(x) for x in (taps, A_log, dt_bias)]
    d_residual = f.new_empty(norm.shape)
    return (projected.new_empty(projected.shape), *grads, d_weight, d_residual, wide(norm))


def _keep(ctx, inputs, output) -> None:
    *tensors, ctx.sizes, ctx.phi, ctx.clip, ctx.eps, _ = inputs
    ctx.save_for_backward(*tensors, *output[2:])
    ctx.last_shape = output[1].shape
    ctx.set_materialize_grads(False)


def _gradient(ctx, d_output: Tensor | None, d_last: Tensor | None, *_):
    tensors, kept = ctx.saved_tensors[:7], ctx.saved_tensors[7:]
    if d_output is None:
        d_output = torch.zeros_like(kept[2]).flatten(2)
    if d_last is None:
        d_last = d_output.new_zeros(ctx.last_shape, dtype=torch.float32)
    grads = _backward(*tensors, *kept, d_output, d_last, ctx.sizes, ctx.phi, ctx.clip, ctx.eps)
    given = zip(grads, tensors, strict=True)
    return (*(None if x is None else g.to(x.dtype) for g, x in given), *[None] * 5)


_forward.register_autograd(_gradient, setup_context=_keep)
