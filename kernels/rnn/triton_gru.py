"""The GRU over time in plain Triton: one program owns 16 sequences of one head.

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
    sigma,
    store_weight,
    tanh,
)


@triton.jit
def gru_gates(h, a_x, a_f, a_r, w, w_f, w_r, PRECISE: tl.constexpr, OPERAND: tl.constexpr):
    """r, f, r ⊙ h and z of one step."""
    rounded = as_operand(h, OPERAND)
    r = sigma(product(rounded, w_r, a_r), PRECISE)
    f = sigma(product(rounded, w_f, a_f), PRECISE)
    recalled = r * h
    z = tanh(product(as_operand(recalled, OPERAND), w, a_x), PRECISE)
    return r, f, recalled, z


@triton.jit
def gru_forward(
    x, forget, recall, weight, forget_weight, recall_weight, state, keep, y, last, B, T, N,
    V: tl.constexpr, BB: tl.constexpr, BV: tl.constexpr, RESET: tl.constexpr,
    PRECISE: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    b, inside, cells, state_cells = cells_of(n, B, T, N, V, 1, BB, BV)
    w = as_operand(head_weight(weight, n, 0, V, 1, BV), OPERAND)
    w_f = as_operand(head_weight(forget_weight, n, 0, V, 1, BV), OPERAND)
    w_r = as_operand(head_weight(recall_weight, n, 0, V, 1, BV), OPERAND)
    h = tl.load(state + state_cells, mask=inside, other=0.0).to(tl.float32)
    next_x = tl.load(x + cells, mask=inside, other=0.0)
    next_f = tl.load(forget + cells, mask=inside, other=0.0)
    next_r = tl.load(recall + cells, mask=inside, other=0.0)
    for t in range(T):
        a_x, a_f, a_r = next_x.to(tl.float32), next_f.to(tl.float32), next_r.to(tl.float32)
        x += N * V
        forget += N * V
        recall += N * V
        more = inside & (b * 0 + t + 1 < T)[:, None]
        next_x = tl.load(x + cells, mask=more, other=0.0)
        next_f = tl.load(forget + cells, mask=more, other=0.0)
        next_r = tl.load(recall + cells, mask=more, other=0.0)
        if RESET:
            h *= tl.load(keep + b * T + t, mask=b < B, other=1.0)[:, None]
        _, f, _, z = gru_gates(h, a_x, a_f, a_r, w, w_f, w_r, PRECISE, OPERAND)
        h = z + f * (h - z)
        tl.store(y + cells, h.to(y.dtype.element_ty), mask=inside)
        y += N * V
    tl.store(last + state_cells, h, mask=inside)


@triton.jit
def gru_backward(
    x, forget, recall, weight, forget_weight, recall_weight, state, keep, y, d_y, carry,
    d_x, d_forget, d_recall, d_weight, d_forget_weight, d_recall_weight, B, T, N,
    V: tl.constexpr, BB: tl.constexpr, BV: tl.constexpr, RESET: tl.constexpr,
    PRECISE: tl.constexpr, OPERAND: tl.constexpr, CLIP: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    b, inside, cells, state_cells = cells_of(n, B, T, N, V, 1, BB, BV)
    full = head_weight(weight, n, 0, V, 1, BV)
    full_f = head_weight(forget_weight, n, 0, V, 1, BV)
    full_r = head_weight(recall_weight, n, 0, V, 1, BV)
    w, wt = as_operand(full, OPERAND), as_operand(tl.trans(full), OPERAND)
    w_f, wt_f = as_operand(full_f, OPERAND), as_operand(tl.trans(full_f), OPERAND)
    w_r, wt_r = as_operand(full_r, OPERAND), as_operand(tl.trans(full_r), OPERAND)
    c = tl.load(carry + state_cells, mask=inside, other=0.0)
    dw = tl.zeros((BV, BV), tl.float32)
    dw_f = tl.zeros((BV, BV), tl.float32)
    dw_r = tl.zeros((BV, BV), tl.float32)
    first = tl.load(state + state_cells, mask=inside, other=0.0).to(tl.float32)
    t = n * 0 + (T - 1)
    for _ in range(T):
        at = t * N * V + cells
        dy = tl.load(d_y + at, mask=inside, other=0.0).to(tl.float32)
        a_x = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        a_f = tl.load(forget + at, mask=inside, other=0.0).to(tl.float32)
        a_r = tl.load(recall + at, mask=inside, other=0.0).to(tl.float32)
        before = tl.load(y + at - N * V, mask=inside & (b * 0 + t > 0)[:, None], other=0.0)
        h = tl.where(t > 0, before.to(tl.float32), first)
        if RESET:
            kept = tl.load(keep + b * T + t, mask=b < B, other=1.0)[:, None]
            h = h * kept
        r, f, recalled, z = gru_gates(h, a_x, a_f, a_r, w, w_f, w_r, PRECISE, OPERAND)
        grad = receive(dy, c, CLIP)
        d = grad * (1 - f) * (1 - z * z)
        d_f = grad * (h - z) * f * (1 - f)
        zero = tl.zeros((BB, BV), tl.float32)
        d_recalled = product(as_operand(d, OPERAND), wt, zero)
        d_r = d_recalled * h * r * (1 - r)
        c = product(as_operand(d_f, OPERAND), wt_f, grad * f + d_recalled * r)
        c = product(as_operand(d_r, OPERAND), wt_r, c)
        if RESET:
            c *= kept
        dw = add_outer(dw, recalled, d, OPERAND)
        dw_f = add_outer(dw_f, h, d_f, OPERAND)
        dw_r = add_outer(dw_r, h, d_r, OPERAND)
        tl.store(d_x + at, d.to(d_x.dtype.element_ty), mask=inside)
        tl.store(d_forget + at, d_f.to(d_x.dtype.element_ty), mask=inside)
        tl.store(d_recall + at, d_r.to(d_x.dtype.element_ty), mask=inside)
        t -= 1
    tl.store(carry + state_cells, c, mask=inside)
    slab = tl.program_id(1) * N + n
    store_weight(d_weight, slab, 0, dw, V, 1, BV)
    store_weight(d_forget_weight, slab, 0, dw_f, V, 1, BV)
    store_weight(d_recall_weight, slab, 0, dw_r, V, 1, BV)
