"""The short causal convolution with SiLU in one kernel each way, on slices of wider tensors.

p_t = sum over k of w_k x_{t-k};  y_t = p_t s(p_t), s the sigmoid;  dp_t = dy_t s (1 + p_t (1 - s))
dx_t = sum over k of w_k dp_{t+k};  dw_k = sum over t of dp_t x_{t-k}

A warp walks a chunk of time with the last inputs in registers, so that memory is read and written
once. The backward runs p again and, to know dp behind its chunk, four more steps. Sums over time
are kept by chunk and added in a fixed order. All in float32.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOperatorIssue=false
# (kernel arguments are typed for the device)
import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_sigmoid import interpreted, sigmoid

TAPS = 4  # at most
CHANNELS = 128  # of a warp: 8 bytes a lane in bfloat16
CHUNK = 64  # steps of a warp


@triton.jit
def _taps(weight, c, inside, W: tl.constexpr):
    """w_0 to w_3, by how far back they look; weight (C, W) holds the farthest first."""
    weight += c * W
    w0 = tl.load(weight + W - 1, mask=inside, other=0.0).to(tl.float32)
    w1 = tl.zeros_like(w0)
    w2 = w1
    w3 = w1
    if W > 1:
        w1 = tl.load(weight + W - 2, mask=inside, other=0.0).to(tl.float32)
    if W > 2:
        w2 = tl.load(weight + W - 3, mask=inside, other=0.0).to(tl.float32)
    if W > 3:
        w3 = tl.load(weight + W - 4, mask=inside, other=0.0).to(tl.float32)
    return w0, w1, w2, w3


@triton.jit
def _row(x, t, stride, T, inside):
    """x_t in float32, zeros outside of [0, T)."""
    at = tl.where(inside, t, -1)
    mask = (at >= 0) & (at < T)
    return tl.load(x + tl.cast(t, tl.int64) * stride, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _put(y, t, stride, first, end, value, inside):
    """y_t = value for t in [first, end)."""
    at = tl.where(inside, t, -1)
    mask = (at >= first) & (at < end)
    tl.store(y + tl.cast(t, tl.int64) * stride, value.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _activated(p, SILU: tl.constexpr, PTX: tl.constexpr):
    if SILU:
        p = p * sigmoid(p, PTX)
    return p


@triton.jit
def _through(dy, p, SILU: tl.constexpr, PTX: tl.constexpr):
    """dp from dy."""
    if SILU:
        s = sigmoid(p, PTX)
        dy = dy * (s * (1 + p * (1 - s)))
    return dy


@triton.jit
def convolution_forward(
    x, weight, bias, y, T, C, x_b, x_t, y_b, y_t,
    W: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr, CHUNK: tl.constexpr,
    CHANNELS: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    inside = c < C
    b = tl.program_id(2).to(tl.int64)
    x += b * x_b + c
    y += b * y_b + c
    w0, w1, w2, w3 = _taps(weight, c, inside, W)
    start = tl.zeros((CHANNELS,), tl.float32)
    if BIAS:
        start = tl.load(bias + c, mask=inside, other=0.0).to(tl.float32)
    first = tl.program_id(1) * CHUNK
    end = tl.minimum(first + CHUNK, T)
    a = _row(x, first - 3, x_t, T, inside)
    b_ = _row(x, first - 2, x_t, T, inside)
    c_ = _row(x, first - 1, x_t, T, inside)
    for t in range(first, end, 4):
        x0 = _row(x, t, x_t, T, inside)
        x1 = _row(x, t + 1, x_t, T, inside)
        x2 = _row(x, t + 2, x_t, T, inside)
        x3 = _row(x, t + 3, x_t, T, inside)
        p0 = start + w3 * a + w2 * b_ + w1 * c_ + w0 * x0
        p1 = start + w3 * b_ + w2 * c_ + w1 * x0 + w0 * x1
        p2 = start + w3 * c_ + w2 * x0 + w1 * x1 + w0 * x2
        p3 = start + w3 * x0 + w2 * x1 + w1 * x2 + w0 * x3
        _put(y, t, y_t, first, end, _activated(p0, SILU, PTX), inside)
        _put(y, t + 1, y_t, first, end, _activated(p1, SILU, PTX), inside)
        _put(y, t + 2, y_t, first, end, _activated(p2, SILU, PTX), inside)
        _put(y, t + 3, y_t, first, end, _activated(p3, SILU, PTX), inside)
        a, b_, c_ = x1, x2, x3


@triton.jit
def convolution_backward(
    x, weight, bias, dy, dx, sums, T, C, x_b, x_t, dy_b, dy_t, dx_b, dx_t,
    W: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr, CHUNK: tl.constexpr,
    CHANNELS: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """sums: (B, chunks, 5, C) float32, each chunk's share of dw_0 to dw_3 and of the bias'."""
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    inside = c < C
    b = tl.program_id(2).to(tl.int64)
    x += b * x_b + c
    dy += b * dy_b + c
    dx += b * dx_b + c
    w0, w1, w2, w3 = _taps(weight, c, inside, W)
    start = tl.zeros((CHANNELS,), tl.float32)
    if BIAS:
        start = tl.load(bias + c, mask=inside, other=0.0).to(tl.float32)
    s0 = tl.zeros((CHANNELS,), tl.float32)
    s1, s2, s3, s4 = s0, s0, s0, s0
    e1, e2, e3 = s0, s0, s0  # dp of the three steps before
    first = tl.program_id(1) * CHUNK
    end = tl.minimum(first + CHUNK, T)
    a = _row(x, first - 3, x_t, T, inside)
    b_ = _row(x, first - 2, x_t, T, inside)
    c_ = _row(x, first - 1, x_t, T, inside)
    for t in range(first, end + 3, 4):
        x0 = _row(x, t, x_t, T, inside)
        x1 = _row(x, t + 1, x_t, T, inside)
        x2 = _row(x, t + 2, x_t, T, inside)
        x3 = _row(x, t + 3, x_t, T, inside)
        d0 = _row(dy, t, dy_t, T, inside)
        d1 = _row(dy, t + 1, dy_t, T, inside)
        d2 = _row(dy, t + 2, dy_t, T, inside)
        d3 = _row(dy, t + 3, dy_t, T, inside)
        d0 = _through(d0, start + w3 * a + w2 * b_ + w1 * c_ + w0 * x0, SILU, PTX)
        d1 = _through(d1, start + w3 * b_ + w2 * c_ + w1 * x0 + w0 * x1, SILU, PTX)
        d2 = _through(d2, start + w3 * c_ + w2 * x0 + w1 * x1 + w0 * x2, SILU, PTX)
        d3 = _through(d3, start + w3 * x0 + w2 * x1 + w1 * x2 + w0 * x3, SILU, PTX)
        _put(dx, t - 3, dx_t, first, end, w0 * e3 + w1 * e2 + w2 * e1 + w3 * d0, inside)
        _put(dx, t - 2, dx_t, first, end, w0 * e2 + w1 * e1 + w2 * d0 + w3 * d1, inside)
        _put(dx, t - 1, dx_t, first, end, w0 * e1 + w1 * d0 + w2 * d1 + w3 * d2, inside)
        _put(dx, t, dx_t, first, end, w0 * d0 + w1 * d1 + w2 * d2 + w3 * d3, inside)
        e3, e2, e1 = d1, d2, d3
        # the next chunk's own steps do not count here
        d0, d1 = tl.where(t < end, d0, 0.0), tl.where(t + 1 < end, d1, 0.0)
        d2, d3 = tl.where(t + 2 < end, d2, 0.0), tl.where(t + 3 < end, d3, 0.0)
        s0 += d0 * x0 + d1 * x1 + d2 * x2 + d3 * x3
        s1 += d0 * c_ + d1 * x0 + d2 * x1 + d3 * x2
        s2 += d0 * b_ + d1 * c_ + d2 * x0 + d3 * x1
        s3 += d0 * a + d1 * b_ + d2 * c_ + d3 * x0
        s4 += d0 + d1 + d2 + d3
        a, b_, c_ = x1, x2, x3
    sums += (b * tl.num_programs(1) + tl.program_id(1)) * 5 * C + c
    tl.store(sums, s0, mask=inside)
    tl.store(sums + C, s1, mask=inside)
    tl.store(sums + 2 * C, s2, mask=inside)
    tl.store(sums + 3 * C, s3, mask=inside)
    tl.store(sums + 4 * C, s4, mask=inside)


def _grid(x: Tensor) -> tuple[int, int, int]:
    B, T, C = x.shape
    return triton.cdiv(C, CHANNELS), triton.cdiv(T, CHUNK), B


def _choices(weight: Tensor, bias: Tensor | None, silu: bool) -> dict:
    return {
        "W": weight.shape[1], "BIAS": bias is not None, "SILU": silu, "CHUNK": CHUNK,
        "CHANNELS": CHANNELS, "PTX": not interpreted(), "num_warps": 1,
    }  # fmt: skip


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, *, silu: bool) -> None:
    """Writes y. x, y: (B, T, C), dense in C alone; weight: (C, W), W at most TAPS, contiguous."""
    C, T = x.shape[2], x.shape[1]
    with torch.cuda.device_of(x):
        convolution_forward[_grid(x)](
            x, weight, weight if bias is None else bias, y, T, C, *x.stride()[:2], *y.stride()[:2],
            **_choices(weight, bias, silu),
        )  # fmt: skip


def convolve_back(
    x: Tensor, weight: Tensor, bias: Tensor | None, dy: Tensor, dx: Tensor, *, silu: bool
) -> tuple[Tensor, Tensor]:
    """Writes dx; the gradients of weight and bias, float32. Tensors as in `convolve`."""
    (B, T, C), W = x.shape, weight.shape[1]
    sums = x.new_empty(B, triton.cdiv(T, CHUNK), 5, C, dtype=torch.float32)
    with torch.cuda.device_of(x):
        convolution_backward[_grid(x)](
            x, weight, weight if bias is None else bias, dy, dx, sums, T, C, *x.stride()[:2],
            *dy.stride()[:2], *dx.stride()[:2], **_choices(weight, bias, silu),
        )  # fmt: skip
    total = sums.sum((0, 1))
    return total[:W].flip(0).T.contiguous(), total[4].clone()


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *, silu: bool) -> Tensor:
    """y (B, T, C) of `kernels.convolution.causal_convolution`, from no state; x may be a slice."""
    return torch.ops.arch_search.convolution(x, weight, bias, silu)


def _dense(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


@torch.library.custom_op("arch_search::convolution", mutates_args=())
def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool) -> Tensor:
    y = x.new_empty(x.shape)
    convolve(_dense(x), weight.contiguous(), bias, y, silu=silu)
    return y


@_forward.register_fake
def _(x, weight, bias, silu):
    return x.new_empty(x.shape)


@torch.library.custom_op("arch_search::convolution_backward", mutates_args=())
def _backward(
    x: Tensor, weight: Tensor, bias: Tensor | None, dy: Tensor, silu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, and in float32 of weight and bias (whether there is one or not)."""
    dx = x.new_empty(x.shape)
    x, dy = _dense(x), _dense(dy)
    return dx, *convolve_back(x, weight.contiguous(), bias, dy, dx, silu=silu)


@_backward.register_fake
def _(x, weight, bias, dy, silu):
    wide = weight.new_empty(weight.shape, dtype=torch.float32)
    return x.new_empty(x.shape), wide, wide.new_empty(len(weight))


def _keep(ctx, inputs, output) -> None:
    *tensors, ctx.silu = inputs
    ctx.save_for_backward(*tensors)


def _gradient(ctx, dy: Tensor):
    x, weight, bias = ctx.saved_tensors
    dx, dw, db = _backward(x, weight, bias, dy, ctx.silu)
    return dx, dw.to(weight.dtype), None if bias is None else db.to(bias.dtype), None


_forward.register_autograd(_gradient, setup_context=_keep)
