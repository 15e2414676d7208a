"""The fast RNN, GRU and LSTM: the kernels of `triton_cells` with explicit layouts (Gluon).

One warp owns 16 sequences of one head. The state stays in the accumulator layout of
mma.m16n8k16, which is also that of a left operand, and inputs are loaded in it: no step waits for
an exchange between lanes, and only the weights' gradients transpose anything.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportAssignmentType=false
# (Gluon's own types are those of its compiler)
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from kernels.m2rnn.gluon_operands import clamp_one, nonlinearity, right, transposed_left


@gluon.jit
def sigma(x):
    return 0.5 * nonlinearity(0.5 * x, "tanh") + 0.5


@gluon.jit
def head_weight(
    pointer, n, part, TRANSPOSE: gl.constexpr, PARTS: gl.constexpr, V: gl.constexpr,
    RIGHT: gl.constexpr,
):  # fmt: skip
    """Columns part V to (part + 1) V of head n's weight, or their transpose, as right operand."""
    i = gl.arange(0, V, layout=gl.SliceLayout(1, RIGHT))[:, None]
    j = gl.arange(0, V, layout=gl.SliceLayout(0, RIGHT))[None, :]
    at = j * V * PARTS + i if TRANSPOSE else i * V * PARTS + j
    return gl.load(pointer + n * V * V * PARTS + part * V + at).to(gl.bfloat16)


@gluon.jit
def add_outer(total, h, d, V: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr):
    """total + hᵀ d, for h and d (16, V) rounded to bfloat16."""
    return mma_v2(transposed_left(h, 16, V, LEFT), right(d, 16, V, RIGHT), total)


@gluon.jit
def store_weight(pointer, slab, part, x, PARTS: gl.constexpr, V: gl.constexpr, MMA: gl.constexpr):
    i = gl.arange(0, V, layout=gl.SliceLayout(1, MMA))[:, None]
    j = gl.arange(0, V, layout=gl.SliceLayout(0, MMA))[None, :]
    gl.store(pointer + slab * V * V * PARTS + i * V * PARTS + part * V + j, x)


@gluon.jit
def receive(grad, carry, CLIP: gl.constexpr):
    """dL/dh_t from the output's gradient and the carried one."""
    if CLIP == "carry":
        carry = clamp_one(carry)
    r = grad + carry
    if CLIP == "sum":
        r = clamp_one(r)
    return r


@gluon.jit
def places(B, T, N, V: gl.constexpr, MMA: gl.constexpr):
    """The head, the sequences (16,), the columns, what exists, and where rows start: at the first
    step of an input (B, T, N, V), and in a state (B, N, V)."""
    n = gl.program_id(0).to(gl.int64)
    b = (gl.program_id(1) * 16 + gl.arange(0, 16, layout=gl.SliceLayout(1, MMA))).to(gl.int64)
    v = gl.arange(0, V, layout=gl.SliceLayout(0, MMA))[None, :]
    inside = (b < B)[:, None] & (v < V)
    return n, b, v, inside, (b * T * N + n)[:, None] * V, (b * N + n)[:, None] * V + v


@gluon.jit
def load_tile(pointer, cells, inside, exists):
    """A tile, zeros where the step does not exist."""
    return gl.load(pointer + cells, mask=inside & (cells * 0 + exists > 0), other=0.0)


@gluon.jit
def product(x, w, accumulator, LEFT: gl.constexpr):
    """accumulator + x w for x in the accumulator layout, rounded to bfloat16."""
    return mma_v2(gl.convert_layout(x.to(gl.bfloat16), LEFT), w, accumulator)


@gluon.jit
def kept_column(keep, b, B, T, t):
    """0 for the sequences that begin a document at step t, else 1: (16, 1)."""
    return gl.load(keep + b * T + t, mask=b < B, other=1.0)[:, None]


@gluon.jit
def rnn_forward(x, weight, state, keep, y, last, B, T, N, V: gl.constexpr, RESET: gl.constexpr):
    MMA: gl.constexpr = gl.NVMMADistributedLayout(
        version=[2, 0], warps_per_cta=[1, 1], instr_shape=[16, 8]
    )
    LEFT: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    n, b, v, inside, starts, states = places(B, T, N, V, MMA)
    w = head_weight(weight, n, 0, False, 1, V, RIGHT)
    h = gl.load(state + states, mask=inside, other=0.0).to(gl.float32)
    cells = starts + v
    # two steps ahead: a step is shorter than a load
    coming = gl.load(x + cells, mask=inside, other=0.0)
    later = load_tile(x + N * V, cells, inside, T - 1)
    for t in range(T):
        a = coming.to(gl.float32)
        x += N * V
        coming = later
        later = load_tile(x + N * V, cells, inside, T - t - 2)
        if RESET:
            h *= kept_column(keep, b, B, T, t)
        h = nonlinearity(product(h, w, a, LEFT), "tanh")
        gl.store(y + cells, h.to(gl.bfloat16), mask=inside)
        y += N * V
    gl.store(last + states, h, mask=inside)


@gluon.jit
def rnn_backward(
    weight, state, keep, y, d_y, carry, d_x, d_weight, B, T, N,
    V: gl.constexpr, RESET: gl.constexpr, CLIP: gl.constexpr,
):  # fmt: skip
    MMA: gl.constexpr = gl.NVMMADistributedLayout(
        version=[2, 0], warps_per_cta=[1, 1], instr_shape=[16, 8]
    )
    LEFT: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    n, b, v, inside, starts, states = places(B, T, N, V, MMA)
    w = head_weight(weight, n, 0, True, 1, V, RIGHT)
    c = gl.load(carry + states, mask=inside, other=0.0)
    dw = gl.zeros([V, V], gl.float32, layout=MMA)
    zero = gl.zeros([16, V], gl.float32, layout=MMA)
    first = gl.load(state + states, mask=inside, other=0.0).to(gl.float32)
    cells = starts + (n * 0 + T - 1) * N * V + v  # of the step in hand
    z = gl.load(y + cells, mask=inside, other=0.0).to(gl.float32)
    dy = gl.load(d_y + cells, mask=inside, other=0.0)
    before = load_tile(y, cells - N * V, inside, T - 1)
    for back in range(T):
        t = T - 1 - back
        grad = dy.to(gl.float32)
        earlier = before.to(gl.float32)
        if t == 0:
            earlier = first
        dy = load_tile(d_y, cells - N * V, inside, t)
        before = load_tile(y, cells - 2 * N * V, inside, t - 1)
        h = earlier
        if RESET:
            kept = kept_column(keep, b, B, T, t)
            h = h * kept
        d = receive(grad, c, CLIP) * (1 - z * z)
        c = product(d, w, zero, LEFT)
        if RESET:
            c *= kept
        rounded = d.to(gl.bfloat16)
        dw = add_outer(dw, h.to(gl.bfloat16), rounded, V, LEFT, RIGHT)
        gl.store(d_x + cells, rounded, mask=inside)
        z = earlier
        cells -= N * V
    gl.store(carry + states, c, mask=inside)
    store_weight(d_weight, gl.program_id(1) * N + n, 0, dw, 1, V, MMA)


@gluon.jit
def gru_gates(h, a_x, a_f, a_r, w, w_f, w_r, LEFT: gl.constexpr):
    """r, f, r ⊙ h and z of one step."""
    operand = gl.convert_layout(h.to(gl.bfloat16), LEFT)
    r = sigma(mma_v2(operand, w_r, a_r.to(gl.float32)))
    f = sigma(mma_v2(operand, w_f, a_f.to(gl.float32)))
    recalled = r * h
    return r, f, recalled, nonlinearity(product(recalled, w, a_x.to(gl.float32), LEFT), "tanh")


@gluon.jit
def gru_forward(
    x, forget, recall, weight, forget_weight, recall_weight, state, keep, y, last, B, T, N,
    V: gl.constexpr, RESET: gl.constexpr,
):  # fmt: skip
    MMA: gl.constexpr = gl.NVMMADistributedLayout(
        version=[2, 0], warps_per_cta=[1, 1], instr_shape=[16, 8]
    )
    LEFT: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    n, b, v, inside, starts, states = places(B, T, N, V, MMA)
    w = head_weight(weight, n, 0, False, 1, V, RIGHT)
    w_f = head_weight(forget_weight, n, 0, False, 1, V, RIGHT)
    w_r = head_weight(recall_weight, n, 0, False, 1, V, RIGHT)
    h = gl.load(state + states, mask=inside, other=0.0).to(gl.float32)
    cells = starts + v
    next_x = gl.load(x + cells, mask=inside, other=0.0)
    next_f = gl.load(forget + cells, mask=inside, other=0.0)
    next_r = gl.load(recall + cells, mask=inside, other=0.0)
    later_x = load_tile(x, cells + N * V, inside, T - 1)
    later_f = load_tile(forget, cells + N * V, inside, T - 1)
    later_r = load_tile(recall, cells + N * V, inside, T - 1)
    for t in range(T):
        a_x, a_f, a_r = next_x, next_f, next_r
        next_x, next_f, next_r = later_x, later_f, later_r
        later_x = load_tile(x, cells + 2 * N * V, inside, T - t - 2)
        later_f = load_tile(forget, cells + 2 * N * V, inside, T - t - 2)
        later_r = load_tile(recall, cells + 2 * N * V, inside, T - t - 2)
        if RESET:
            h *= kept_column(keep, b, B, T, t)
        _, f, _, z = gru_gates(h, a_x, a_f, a_r, w, w_f, w_r, LEFT)
        h = z + f * (h - z)
        gl.store(y + cells, h.to(gl.bfloat16), mask=inside)
        cells += N * V
    gl.store(last + states, h, mask=inside)


@gluon.jit
def gru_backward(
    x, forget, recall, weight, forget_weight, recall_weight, state, keep, y, d_y, carry,
    d_x, d_forget, d_recall, d_weight, d_forget_weight, d_recall_weight, B, T, N,
    V: gl.constexpr, RESET: gl.constexpr, CLIP: gl.constexpr,
):  # fmt: skip
    MMA: gl.constexpr = gl.NVMMADistributedLayout(
        version=[2, 0], warps_per_cta=[1, 1], instr_shape=[16, 8]
    )
    LEFT: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    n, b, v, inside, starts, states = places(B, T, N, V, MMA)
    w = head_weight(weight, n, 0, False, 1, V, RIGHT)
    w_f = head_weight(forget_weight, n, 0, False, 1, V, RIGHT)
    w_r = head_weight(recall_weight, n, 0, False, 1, V, RIGHT)
    wt = head_weight(weight, n, 0, True, 1, V, RIGHT)
    wt_f = head_weight(forget_weight, n, 0, True, 1, V, RIGHT)
    wt_r = head_weight(recall_weight, n, 0, True, 1, V, RIGHT)
    c = gl.load(carry + states, mask=inside, other=0.0)
    zero = gl.zeros([16, V], gl.float32, layout=MMA)
    dw = gl.zeros([V, V], gl.float32, layout=MMA)
    dw_f = dw
    dw_r = dw
    first = gl.load(state + states, mask=inside, other=0.0).to(gl.float32)
    cells = starts + (n * 0 + T - 1) * N * V + v
    next_x = gl.load(x + cells, mask=inside, other=0.0)
    next_f = gl.load(forget + cells, mask=inside, other=0.0)
    next_r = gl.load(recall + cells, mask=inside, other=0.0)
    next_dy = gl.load(d_y + cells, mask=inside, other=0.0)
    next_h = load_tile(y, cells - N * V, inside, T - 1)
    for back in range(T):
        t = T - 1 - back
        a_x, a_f, a_r, dy = next_x, next_f, next_r, next_dy.to(gl.float32)
        h = next_h.to(gl.float32)
        if t == 0:
            h = first
        next_x = load_tile(x, cells - N * V, inside, t)
        next_f = load_tile(forget, cells - N * V, inside, t)
        next_r = load_tile(recall, cells - N * V, inside, t)
        next_dy = load_tile(d_y, cells - N * V, inside, t)
        next_h = load_tile(y, cells - 2 * N * V, inside, t - 1)
        if RESET:
            kept = kept_column(keep, b, B, T, t)
            h = h * kept
        r, f, recalled, z = gru_gates(h, a_x, a_f, a_r, w, w_f, w_r, LEFT)
        grad = receive(dy, c, CLIP)
        d = grad * ((1 - f) * (1 - z * z))
        d_f = grad * ((h - z) * (f * (1 - f)))
        d_recalled = product(d, wt, zero, LEFT)
        d_r = d_recalled * (h * (r * (1 - r)))
        c = product(d_f, wt_f, grad * f + d_recalled * r, LEFT)
        c = product(d_r, wt_r, c, LEFT)
        if RESET:
            c *= kept
        past = h.to(gl.bfloat16)
        dw = add_outer(dw, recalled.to(gl.bfloat16), d.to(gl.bfloat16), V, LEFT, RIGHT)
        dw_f = add_outer(dw_f, past, d_f.to(gl.bfloat16), V, LEFT, RIGHT)
        dw_r = add_outer(dw_r, past, d_r.to(gl.bfloat16), V, LEFT, RIGHT)
        gl.store(d_x + cells, d.to(gl.bfloat16), mask=inside)
        gl.store(d_forget + cells, d_f.to(gl.bfloat16), mask=inside)
        gl.store(d_recall + cells, d_r.to(gl.bfloat16), mask=inside)
        cells -= N * V
    gl.store(carry + states, c, mask=inside)
    slab = gl.program_id(1) * N + n
    store_weight(d_weight, slab, 0, dw, 1, V, MMA)
    store_weight(d_forget_weight, slab, 0, dw_f, 1, V, MMA)
    store_weight(d_recall_weight, slab, 0, dw_r, 1, V, MMA)


@gluon.jit
def lstm_gates(h, a_i, a_f, a_o, a_g, w, LEFT: gl.constexpr):
    """The three gates and the candidate of one step."""
    operand = gl.convert_layout(h.to(gl.bfloat16), LEFT)
    i = sigma(mma_v2(operand, w[0], a_i.to(gl.float32)))
    f = sigma(mma_v2(operand, w[1], a_f.to(gl.float32)))
    o = sigma(mma_v2(operand, w[2], a_o.to(gl.float32)))
    g = nonlinearity(mma_v2(operand, w[3], a_g.to(gl.float32)), "tanh")
    return i, f, o, g


@gluon.jit
def four_weights(weight, n, TRANSPOSE: gl.constexpr, V: gl.constexpr, RIGHT: gl.constexpr):
    return (
        head_weight(weight, n, 0, TRANSPOSE, 4, V, RIGHT),
        head_weight(weight, n, 1, TRANSPOSE, 4, V, RIGHT),
        head_weight(weight, n, 2, TRANSPOSE, 4, V, RIGHT),
        head_weight(weight, n, 3, TRANSPOSE, 4, V, RIGHT),
    )


@gluon.jit
def four_tiles(gates, cells, inside, exists, V: gl.constexpr):
    return (
        load_tile(gates, cells, inside, exists),
        load_tile(gates + V, cells, inside, exists),
        load_tile(gates + 2 * V, cells, inside, exists),
        load_tile(gates + 3 * V, cells, inside, exists),
    )


@gluon.jit
def lstm_forward(
    gates, weight, hidden, cell, keep, y, cells_kept, last, last_cell, B, T, N,
    V: gl.constexpr, RESET: gl.constexpr,
):  # fmt: skip
    MMA: gl.constexpr = gl.NVMMADistributedLayout(
        version=[2, 0], warps_per_cta=[1, 1], instr_shape=[16, 8]
    )
    LEFT: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    n, b, v, inside, starts, states = places(B, T, N, V, MMA)
    w = four_weights(weight, n, False, V, RIGHT)
    h = gl.load(hidden + states, mask=inside, other=0.0).to(gl.float32)
    c = gl.load(cell + states, mask=inside, other=0.0).to(gl.float32)
    cells = starts + v
    row = starts * 4
    coming = four_tiles(gates, row + v, inside, T, V)
    for t in range(T):
        a_i, a_f, a_o, a_g = coming
        coming = four_tiles(gates, row + N * V * 4 + v, inside, T - t - 1, V)
        if RESET:
            kept = kept_column(keep, b, B, T, t)
            h *= kept
            c *= kept
        i, f, o, g = lstm_gates(h, a_i, a_f, a_o, a_g, w, LEFT)
        c = f * c + i * g
        h = o * nonlinearity(c, "tanh")
        gl.store(y + cells, h.to(gl.bfloat16), mask=inside)
        gl.store(cells_kept + cells, c, mask=inside)
        cells += N * V
        row += N * V * 4
    gl.store(last + states, h, mask=inside)
    gl.store(last_cell + states, c, mask=inside)


@gluon.jit
def lstm_backward(
    gates, weight, hidden, cell, keep, y, cells_kept, d_y, carry, carry_cell, d_gates, d_weight,
    B, T, N, V: gl.constexpr, RESET: gl.constexpr, CLIP: gl.constexpr,
):  # fmt: skip
    MMA: gl.constexpr = gl.NVMMADistributedLayout(
        version=[2, 0], warps_per_cta=[1, 1], instr_shape=[16, 8]
    )
    LEFT: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    n, b, v, inside, starts, states = places(B, T, N, V, MMA)
    w = four_weights(weight, n, False, V, RIGHT)
    wt = four_weights(weight, n, True, V, RIGHT)
    dh = gl.load(carry + states, mask=inside, other=0.0)
    dc = gl.load(carry_cell + states, mask=inside, other=0.0)
    zero = gl.zeros([16, V], gl.float32, layout=MMA)
    dw_i = gl.zeros([V, V], gl.float32, layout=MMA)
    dw_f = dw_i
    dw_o = dw_i
    dw_g = dw_i
    first = gl.load(hidden + states, mask=inside, other=0.0).to(gl.float32)
    first_c = gl.load(cell + states, mask=inside, other=0.0).to(gl.float32)
    row = starts + (n * 0 + T - 1) * N * V
    cells = row + v
    c = gl.load(cells_kept + cells, mask=inside, other=0.0)
    coming = four_tiles(gates, row * 4 + v, inside, T, V)
    next_dy = gl.load(d_y + cells, mask=inside, other=0.0)
    next_h = load_tile(y, cells - N * V, inside, T - 1)
    next_c = load_tile(cells_kept, cells - N * V, inside, T - 1)
    for back in range(T):
        t = T - 1 - back
        a_i, a_f, a_o, a_g = coming
        dy = next_dy.to(gl.float32)
        h = next_h.to(gl.float32)
        before = next_c
        if t == 0:
            h = first
            before = first_c
        coming = four_tiles(gates, (row - N * V) * 4 + v, inside, t, V)
        next_dy = load_tile(d_y, cells - N * V, inside, t)
        next_h = load_tile(y, cells - 2 * N * V, inside, t - 1)
        next_c = load_tile(cells_kept, cells - 2 * N * V, inside, t - 1)
        c_before = before
        if RESET:
            kept = kept_column(keep, b, B, T, t)
            h = h * kept
            c_before = before * kept
        i, f, o, g = lstm_gates(h, a_i, a_f, a_o, a_g, w, LEFT)
        bounded = nonlinearity(c, "tanh")
        grad = receive(dy, dh, CLIP)
        if CLIP != "none":
            dc = clamp_one(dc)
        d_o = (grad * (bounded * (o * (1 - o)))).to(gl.bfloat16)
        dc += grad * (o * (1 - bounded * bounded))
        d_i = (dc * (g * (i * (1 - i)))).to(gl.bfloat16)
        d_f = (dc * (c_before * (f * (1 - f)))).to(gl.bfloat16)
        d_g = (dc * (i * (1 - g * g))).to(gl.bfloat16)
        dc = dc * f
        dh = product(d_i, wt[0], zero, LEFT)
        dh = product(d_f, wt[1], dh, LEFT)
        dh = product(d_o, wt[2], dh, LEFT)
        dh = product(d_g, wt[3], dh, LEFT)
        if RESET:
            dh *= kept
            dc *= kept
        past = h.to(gl.bfloat16)
        dw_i = add_outer(dw_i, past, d_i, V, LEFT, RIGHT)
        dw_f = add_outer(dw_f, past, d_f, V, LEFT, RIGHT)
        dw_o = add_outer(dw_o, past, d_o, V, LEFT, RIGHT)
        dw_g = add_outer(dw_g, past, d_g, V, LEFT, RIGHT)
        to = d_gates + row * 4 + v
        gl.store(to, d_i, mask=inside)
        gl.store(to + V, d_f, mask=inside)
        gl.store(to + 2 * V, d_o, mask=inside)
        gl.store(to + 3 * V, d_g, mask=inside)
        c = before
        cells -= N * V
        row -= N * V
    gl.store(carry + states, dh, mask=inside)
    gl.store(carry_cell + states, dc, mask=inside)
    slab = gl.program_id(1) * N + n
    store_weight(d_weight, slab, 0, dw_i, 4, V, MMA)
    store_weight(d_weight, slab, 1, dw_f, 4, V, MMA)
    store_weight(d_weight, slab, 2, dw_o, 4, V, MMA)
    store_weight(d_weight, slab, 3, dw_g, 4, V, MMA)
