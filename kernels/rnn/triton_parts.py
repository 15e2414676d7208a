"""What the plain Triton RNN, GRU and LSTM share: gates, weights, clipping."""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportPossiblyUnboundVariable=false
# (the compiler gives integer arguments their tensor methods)
import triton
import triton.language as tl

from kernels.m2rnn.triton_math import (
    approximate_tanh,
    as_operand,
    clamp_one,
    precise_tanh,
    product,
    sigmoid,
)


@triton.jit
def tanh(x, PRECISE: tl.constexpr):
    return precise_tanh(x) if PRECISE else approximate_tanh(x)


@triton.jit
def sigma(x, PRECISE: tl.constexpr):
    return sigmoid(x) if PRECISE else 0.5 * approximate_tanh(0.5 * x) + 0.5


@triton.jit
def cells_of(n, B, T, N, V: tl.constexpr, PARTS: tl.constexpr, BB: tl.constexpr, BV: tl.constexpr):
    """Of head n and the program's sequences: their numbers (BB,), and (BB, BV) each: which cells
    there are, where they stand at t = 0 in (B, T, N, PARTS V), and in a state (B, N, V)."""
    b = (tl.program_id(1) * BB + tl.arange(0, BB)).to(tl.int64)
    v = tl.arange(0, BV)
    inside = (b < B)[:, None] & (v < V)[None, :]
    cells = (b * T * N + n)[:, None] * V * PARTS + v[None, :]
    return b, inside, cells, (b * N + n)[:, None] * V + v[None, :]


@triton.jit
def head_weight(pointer, n, part, V: tl.constexpr, PARTS: tl.constexpr, BV: tl.constexpr):
    """Columns part * V to (part + 1) * V of head n's (V, PARTS V) weight: (BV, BV), float32."""
    i = tl.arange(0, BV)[:, None]
    j = tl.arange(0, BV)[None, :]
    at = pointer + n * V * V * PARTS + i * V * PARTS + part * V + j
    return tl.load(at, mask=(i < V) & (j < V), other=0.0).to(tl.float32)


@triton.jit
def store_weight(pointer, slab, part, x, V: tl.constexpr, PARTS: tl.constexpr, BV: tl.constexpr):
    i = tl.arange(0, BV)[:, None]
    j = tl.arange(0, BV)[None, :]
    at = pointer + slab * V * V * PARTS + i * V * PARTS + part * V + j
    tl.store(at, x, mask=(i < V) & (j < V))


@triton.jit
def receive(grad, carry, CLIP: tl.constexpr):
    """dL/dh_t from the output's gradient and the carried one."""
    if CLIP == "carry":
        carry = clamp_one(carry)
    r = grad + carry
    if CLIP == "sum":
        r = clamp_one(r)
    return r


@triton.jit
def add_outer(total, h, d, OPERAND: tl.constexpr):
    """total + hᵀ d, float32."""
    return product(as_operand(tl.trans(h), OPERAND), as_operand(d, OPERAND), total)
