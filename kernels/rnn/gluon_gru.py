"""The fast GRU, forward and backward; see `gluon_parts`.

Its inputs are loaded two steps ahead: prefetches of as many tensors cost more than they saved.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportAssignmentType=false
# (Gluon's own types are those of its compiler)
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from kernels.m2rnn.gluon_operands import nonlinearity
from kernels.rnn.gluon_parts import (
    add_outer,
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
