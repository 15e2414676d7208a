"""The LSTM over time in plain Triton: one program owns 16 sequences of one head.

The head's weights stay in registers. The forward keeps what it returns, and the cells; the backward
makes the gates again from the output of the step before.
"""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportPossiblyUnboundVariable=false
# (the compiler gives integer arguments their tensor methods)
import triton
import triton.language as tl

from kernels.m2rnn.triton_math import (
    as_operand,
    clamp_one,
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
def lstm_forward(
    gates, weight, hidden, cell, keep, y, cells_kept, last, last_cell, B, T, N,
    V: tl.constexpr, BB: tl.constexpr, BV: tl.constexpr, RESET: tl.constexpr,
    PRECISE: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    b, inside, cells, state_cells = cells_of(n, B, T, N, V, 1, BB, BV)
    _, _, gate_cells, _ = cells_of(n, B, T, N, V, 4, BB, BV)
    w_i = as_operand(head_weight(weight, n, 0, V, 4, BV), OPERAND)
    w_f = as_operand(head_weight(weight, n, 1, V, 4, BV), OPERAND)
    w_o = as_operand(head_weight(weight, n, 2, V, 4, BV), OPERAND)
    w_g = as_operand(head_weight(weight, n, 3, V, 4, BV), OPERAND)
    h = tl.load(hidden + state_cells, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(cell + state_cells, mask=inside, other=0.0).to(tl.float32)
    for t in range(T):
        at = gates + gate_cells
        gates += N * V * 4
        a_i = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        a_f = tl.load(at + V, mask=inside, other=0.0).to(tl.float32)
        a_o = tl.load(at + 2 * V, mask=inside, other=0.0).to(tl.float32)
        a_g = tl.load(at + 3 * V, mask=inside, other=0.0).to(tl.float32)
        if RESET:
            kept = tl.load(keep + b * T + t, mask=b < B, other=1.0)[:, None]
            h *= kept
            c *= kept
        rounded = as_operand(h, OPERAND)
        i = sigma(product(rounded, w_i, a_i), PRECISE)
        f = sigma(product(rounded, w_f, a_f), PRECISE)
        o = sigma(product(rounded, w_o, a_o), PRECISE)
        g = tanh(product(rounded, w_g, a_g), PRECISE)
        c = f * c + i * g
        h = o * tanh(c, PRECISE)
        tl.store(y + cells, h.to(y.dtype.element_ty), mask=inside)
        tl.store(cells_kept + cells, c, mask=inside)
        y += N * V
        cells_kept += N * V
    tl.store(last + state_cells, h, mask=inside)
    tl.store(last_cell + state_cells, c, mask=inside)


@triton.jit
def lstm_backward(
    gates, weight, hidden, cell, keep, y, cells_kept, d_y, carry, carry_cell, d_gates, d_weight,
    B, T, N,
    V: tl.constexpr, BB: tl.constexpr, BV: tl.constexpr, RESET: tl.constexpr,
    PRECISE: tl.constexpr, OPERAND: tl.constexpr, CLIP: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    b, inside, cells, state_cells = cells_of(n, B, T, N, V, 1, BB, BV)
    _, _, gate_cells, _ = cells_of(n, B, T, N, V, 4, BB, BV)
    full_i = head_weight(weight, n, 0, V, 4, BV)
    full_f = head_weight(weight, n, 1, V, 4, BV)
    full_o = head_weight(weight, n, 2, V, 4, BV)
    full_g = head_weight(weight, n, 3, V, 4, BV)
    w_i, wt_i = as_operand(full_i, OPERAND), as_operand(tl.trans(full_i), OPERAND)
    w_f, wt_f = as_operand(full_f, OPERAND), as_operand(tl.trans(full_f), OPERAND)
    w_o, wt_o = as_operand(full_o, OPERAND), as_operand(tl.trans(full_o), OPERAND)
    w_g, wt_g = as_operand(full_g, OPERAND), as_operand(tl.trans(full_g), OPERAND)
    dh = tl.load(carry + state_cells, mask=inside, other=0.0)
    dc = tl.load(carry_cell + state_cells, mask=inside, other=0.0)
    dw_i = tl.zeros((BV, BV), tl.float32)
    dw_f = tl.zeros((BV, BV), tl.float32)
    dw_o = tl.zeros((BV, BV), tl.float32)
    dw_g = tl.zeros((BV, BV), tl.float32)
    first = tl.load(hidden + state_cells, mask=inside, other=0.0).to(tl.float32)
    first_c = tl.load(cell + state_cells, mask=inside, other=0.0).to(tl.float32)
    t = n * 0 + (T - 1)
    c = tl.load(cells_kept + t * N * V + cells, mask=inside, other=0.0)
    for _ in range(T):
        at = t * N * V + cells
        gate_at = gates + t * N * V * 4 + gate_cells
        a_i = tl.load(gate_at, mask=inside, other=0.0).to(tl.float32)
        a_f = tl.load(gate_at + V, mask=inside, other=0.0).to(tl.float32)
        a_o = tl.load(gate_at + 2 * V, mask=inside, other=0.0).to(tl.float32)
        a_g = tl.load(gate_at + 3 * V, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(d_y + at, mask=inside, other=0.0).to(tl.float32)
        early = inside & (b * 0 + t > 0)[:, None]
        h = tl.load(y + at - N * V, mask=early, other=0.0).to(tl.float32)
        h = tl.where(t > 0, h, first)
        before = tl.where(t > 0, tl.load(cells_kept + at - N * V, mask=early, other=0.0), first_c)
        c_before = before
        if RESET:
            kept = tl.load(keep + b * T + t, mask=b < B, other=1.0)[:, None]
            h = h * kept
            c_before = before * kept
        rounded = as_operand(h, OPERAND)
        i = sigma(product(rounded, w_i, a_i), PRECISE)
        f = sigma(product(rounded, w_f, a_f), PRECISE)
        o = sigma(product(rounded, w_o, a_o), PRECISE)
        g = tanh(product(rounded, w_g, a_g), PRECISE)
        bounded = tanh(c, PRECISE)
        grad = receive(dy, dh, CLIP)
        if CLIP != "none":
            dc = clamp_one(dc)
        d_o = grad * bounded * o * (1 - o)
        dc += grad * o * (1 - bounded * bounded)
        d_i = dc * g * i * (1 - i)
        d_f = dc * c_before * f * (1 - f)
        d_g = dc * i * (1 - g * g)
        dc = dc * f
        dh = product(as_operand(d_i, OPERAND), wt_i, tl.zeros((BB, BV), tl.float32))
        dh = product(as_operand(d_f, OPERAND), wt_f, dh)
        dh = product(as_operand(d_o, OPERAND), wt_o, dh)
        dh = product(as_operand(d_g, OPERAND), wt_g, dh)
        if RESET:
            dh *= kept
            dc *= kept
        dw_i = add_outer(dw_i, h, d_i, OPERAND)
        dw_f = add_outer(dw_f, h, d_f, OPERAND)
        dw_o = add_outer(dw_o, h, d_o, OPERAND)
        dw_g = add_outer(dw_g, h, d_g, OPERAND)
        to = d_gates + t * N * V * 4 + gate_cells
        tl.store(to, d_i.to(d_gates.dtype.element_ty), mask=inside)
        tl.store(to + V, d_f.to(d_gates.dtype.element_ty), mask=inside)
        tl.store(to + 2 * V, d_o.to(d_gates.dtype.element_ty), mask=inside)
        tl.store(to + 3 * V, d_g.to(d_gates.dtype.element_ty), mask=inside)
        c = before
        t -= 1
    tl.store(carry + state_cells, dh, mask=inside)
    tl.store(carry_cell + state_cells, dc, mask=inside)
    slab = tl.program_id(1) * N + n
    store_weight(d_weight, slab, 0, dw_i, V, 4, BV)
    store_weight(d_weight, slab, 1, dw_f, V, 4, BV)
    store_weight(d_weight, slab, 2, dw_o, V, 4, BV)
    store_weight(d_weight, slab, 3, dw_g, V, 4, BV)
