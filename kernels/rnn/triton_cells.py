"""RNN, GRU and LSTM over time in plain Triton: one program owns 16 sequences of one head.

A head's weights stay in registers for the whole sequence. The forward keeps nothing but what it
returns (the LSTM its cells too); the backward makes the gates again from the output of the step
before, so that beside its inputs' gradients, which it must write anyway, it moves nothing.
"""

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


@triton.jit
def rnn_forward(
    x, weight, state, keep, y, last, B, T, N,
    V: tl.constexpr, BB: tl.constexpr, BV: tl.constexpr, RESET: tl.constexpr,
    PRECISE: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    b = (tl.program_id(1) * BB + tl.arange(0, BB)).to(tl.int64)
    v = tl.arange(0, BV)
    inside = (b < B)[:, None] & (v < V)[None, :]
    cells = (b * T * N + n)[:, None] * V + v[None, :]
    state_cells = (b * N + n)[:, None] * V + v[None, :]
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
    b = (tl.program_id(1) * BB + tl.arange(0, BB)).to(tl.int64)
    v = tl.arange(0, BV)
    inside = (b < B)[:, None] & (v < V)[None, :]
    cells = (b * T * N + n)[:, None] * V + v[None, :]
    state_cells = (b * N + n)[:, None] * V + v[None, :]
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
    b = (tl.program_id(1) * BB + tl.arange(0, BB)).to(tl.int64)
    v = tl.arange(0, BV)
    inside = (b < B)[:, None] & (v < V)[None, :]
    cells = (b * T * N + n)[:, None] * V + v[None, :]
    state_cells = (b * N + n)[:, None] * V + v[None, :]
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
    b = (tl.program_id(1) * BB + tl.arange(0, BB)).to(tl.int64)
    v = tl.arange(0, BV)
    inside = (b < B)[:, None] & (v < V)[None, :]
    cells = (b * T * N + n)[:, None] * V + v[None, :]
    state_cells = (b * N + n)[:, None] * V + v[None, :]
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


@triton.jit
def lstm_forward(
    gates, weight, hidden, cell, keep, y, cells_kept, last, last_cell, B, T, N,
    V: tl.constexpr, BB: tl.constexpr, BV: tl.constexpr, RESET: tl.constexpr,
    PRECISE: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    b = (tl.program_id(1) * BB + tl.arange(0, BB)).to(tl.int64)
    v = tl.arange(0, BV)
    inside = (b < B)[:, None] & (v < V)[None, :]
    cells = (b * T * N + n)[:, None] * V + v[None, :]
    gate_cells = (b * T * N + n)[:, None] * V * 4 + v[None, :]
    state_cells = (b * N + n)[:, None] * V + v[None, :]
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
    b = (tl.program_id(1) * BB + tl.arange(0, BB)).to(tl.int64)
    v = tl.arange(0, BV)
    inside = (b < B)[:, None] & (v < V)[None, :]
    cells = (b * T * N + n)[:, None] * V + v[None, :]
    gate_cells = (b * T * N + n)[:, None] * V * 4 + v[None, :]
    state_cells = (b * N + n)[:, None] * V + v[None, :]
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
