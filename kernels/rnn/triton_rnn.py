"""The RNN over time in plain Triton: one program owns 16 sequences of one head.

The head's weights stay in registers. The forward keeps what it returns; the backward makes the
gates again from the output of the step before.
"""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportPossiblyUnboundVariable=false
# (the compiler gives integer arguments their tensor methods)
import triton
import triton.language as tl

from kernels.m2rnn.triton_math import (
    as_operand,
    product,
)
from kernels.rnn.triton_parts import (
    add_outer,
    cells_of,
    head_weight,
    receive,
    store_weight,
    tanh,
)


@triton.jit
def rnn_forward(
    x, weight, state, keep, y, last, B, T, N,
    V: tl.constexpr, BB: tl.constexpr, BV: tl.constexpr, RESET: tl.constexpr,
    PRECISE: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    b, inside, cells, state_cells = cells_of(n, B, T, N, V, 1, BB, BV)
    w = as_operand(head_weight(weight, n, 0, V, 1, BV), OPERAND)
    h = tl.load(state + state_cells, mask=inside, other=0.0).to(tl.float32)  # (BB, BV)
    coming = tl.load(x + cells, mask=inside, other=0.0)
    for t in range(T):
        a = coming.to(tl.float32)
        x += N * V
        coming = tl.load(x + cells, mask=inside & (b * 0 + t + 1 < T)[:, None], other=0.0)
        if RESET:
            h *= tl.load(keep + b * T + t, mask=b < B, other=1.0)[:, None]
        h = tanh(product(as_operand(h, OPERAND), w, a), PRECISE)
        tl.store(y + cells, h.to(y.dtype.element_ty), mask=inside)
        y += N * V
    tl.store(last + state_cells, h, mask=inside)


@triton.jit
def rnn_backward(
    weight, state, keep, y, d_y, carry, d_x, d_weight, B, T, N,
    V: tl.constexpr, BB: tl.constexpr, BV: tl.constexpr, RESET: tl.constexpr,
    PRECISE: tl.constexpr, OPERAND: tl.constexpr, CLIP: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    b, inside, cells, state_cells = cells_of(n, B, T, N, V, 1, BB, BV)
    w = as_operand(tl.trans(head_weight(weight, n, 0, V, 1, BV)), OPERAND)
    c = tl.load(carry + state_cells, mask=inside, other=0.0)
    dw = tl.zeros((BV, BV), tl.float32)
    first = tl.load(state + state_cells, mask=inside, other=0.0).to(tl.float32)
    t = n * 0 + (T - 1)
    z = tl.load(y + t * N * V + cells, mask=inside, other=0.0).to(tl.float32)
    for _ in range(T):
        dy = tl.load(d_y + t * N * V + cells, mask=inside, other=0.0).to(tl.float32)
        before = tl.load(
            y + (t - 1) * N * V + cells, mask=inside & (b * 0 + t > 0)[:, None], other=0.0
        )
        before = tl.where(t > 0, before.to(tl.float32), first)
        h = before
        if RESET:
            kept = tl.load(keep + b * T + t, mask=b < B, other=1.0)[:, None]
            h = h * kept
        d = receive(dy, c, CLIP) * (1 - z * z)
        c = product(as_operand(d, OPERAND), w, tl.zeros((BB, BV), tl.float32))
        if RESET:
            c *= kept
        dw = add_outer(dw, h, d, OPERAND)
        tl.store(d_x + t * N * V + cells, d.to(d_x.dtype.element_ty), mask=inside)
        z = before
        t -= 1
    tl.store(carry + state_cells, c, mask=inside)
    store_weight(d_weight, tl.program_id(1) * N + n, 0, dw, V, 1, BV)
