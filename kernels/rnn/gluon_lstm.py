"""The fast LSTM, forward and backward; see `gluon_parts`."""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportAssignmentType=false
# (Gluon's own types are those of its compiler)
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from kernels.m2rnn.gluon_operands import clamp_one, nonlinearity
from kernels.rnn.gluon_parts import (
    AHEAD,
    add_outer,
    fetch,
    head_weight,
    kept_column,
    load_tile,
    places,
    product,
    receive,
    sigma,
    store_weight,
)


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
def fetch_gates(gates, row, exists, V: gl.constexpr):
    """Asks the cache for a step's 4 V numbers of each sequence, 128 bytes at a time."""
    fetch(gates, row, exists)
    if V == 32:
        fetch(gates + 64, row, exists)


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
        fetch_gates(gates, row + AHEAD * N * V * 4, T - t - AHEAD, V)
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
        fetch_gates(gates, (row - AHEAD * N * V) * 4, t - AHEAD, V)
        fetch(d_y, row - AHEAD * N * V, t - AHEAD)
        fetch(y, row - AHEAD * N * V, t - AHEAD)
        fetch(cells_kept, row - AHEAD * N * V, t - AHEAD)
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
