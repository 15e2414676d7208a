"""The fast RNN, forward and backward; see `gluon_parts`."""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportAssignmentType=false
# (Gluon's own types are those of its compiler)
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.m2rnn.gluon_operands import nonlinearity
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
    store_weight,
)


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
    coming = gl.load(x + cells, mask=inside, other=0.0)
    for t in range(T):
        a = coming.to(gl.float32)
        x += N * V
        coming = load_tile(x, cells, inside, T - t - 1)
        fetch(x + AHEAD * N * V, starts, T - t - 1 - AHEAD)
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
    row = starts + (n * 0 + T - 1) * N * V
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
        fetch(d_y, row - AHEAD * N * V, t - AHEAD)
        fetch(y, row - AHEAD * N * V, t - AHEAD)
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
        row -= N * V
    gl.store(carry + states, c, mask=inside)
    store_weight(d_weight, gl.program_id(1) * N + n, 0, dw, 1, V, MMA)
