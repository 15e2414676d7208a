"""One step of the fast M²RNN backward: run again, and swept; what it loads and what it sums.

The equations are those of `triton_backward`. All products over rows or over V are matrix
instructions: dq, dk and dv gather 8 steps in an accumulator, dW the whole sequence.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportAssignmentType=false, reportOptionalMemberAccess=false
# (Gluon's own types are those of its compiler)
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from kernels.m2rnn.gluon_forward import mix, start
from kernels.m2rnn.gluon_loads import fetch, number_at, row_steps, step_numbers, value_steps
from kernels.m2rnn.gluon_operands import (
    clamp_one,
    lane_products,
    nonlinearity,
    outer,
    pick,
    slope,
    transposed_left,
    widened,
)


@gluon.jit
def outer_operands(
    a, b, a_stride, b_stride, after, steps, rows,
    R: gl.constexpr, V: gl.constexpr, EVEN: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """The operands of the outer products of 4 steps, `after` steps behind a and b: k and v, or q
    and dy."""
    return (
        row_steps(a + after * a_stride, a_stride, steps - after, rows, R, V, EVEN, MMA),
        value_steps(b + after * b_stride, b_stride, steps - after, R, V, EVEN, MMA),
    )


@gluon.jit
def inputs_at(inputs, strides, t):
    """The inputs' addresses at step t: q, k, v, f, keep, dy."""
    t = t.to(gl.int64)
    return (
        inputs[0] + t * strides[0],
        inputs[1] + t * strides[1],
        inputs[2] + t * strides[2],
        inputs[3] + t * strides[3],
        inputs[4] + t,
        inputs[5] + t * strides[4],
    )


@gluon.jit
def fetch_steps(inputs, strides, t, low, high, MMA: gl.constexpr):
    """`fetch` of q, k, v, f and dy of 8 steps from t on, kept within [low, high]."""
    step = t + gl.arange(0, 8, layout=gl.SliceLayout(1, MMA))
    step = gl.minimum(gl.maximum(step, low), high).to(gl.int64)
    fetch(inputs[0] + step * strides[0], 1)
    fetch(inputs[1] + step * strides[1], 1)
    fetch(inputs[2] + step * strides[2], 1)
    fetch(inputs[3] + step * strides[3], 1)
    fetch(inputs[5] + step * strides[4], 1)


@gluon.jit
def gates(at, strides, steps, RESET: gl.constexpr, EVEN: gl.constexpr, MMA: gl.constexpr):
    """Forget gates of 8 steps, and what the resets leave."""
    f = step_numbers(at[3], strides[3], steps, MMA, EVEN)
    kept = f
    if RESET:
        kept = step_numbers(at[4], 1, steps, MMA, EVEN)
    return f, kept


@gluon.jit
def run_step(
    h, operand, k, v, mixing, inner, V: gl.constexpr, WEIGHT: gl.constexpr, PHI: gl.constexpr,
    CHAINED: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """Z of step `inner` of 4, from H_{t-1} in float32 and as an operand."""
    x = start(h, k, v, inner, mixing[0], V, WEIGHT, CHAINED, MMA)
    return nonlinearity(mix(x, operand, mixing[1], WEIGHT), PHI)


@gluon.jit
def rebuild_step(
    h, dq, slot, k, v, gate, dy_columns, mixing, inner, j, R: gl.constexpr, V: gl.constexpr,
    WEIGHT: gl.constexpr, PHI: gl.constexpr, RESET: gl.constexpr, CHAINED: gl.constexpr,
    MMA: gl.constexpr,
):  # fmt: skip
    """Keeps H_{t-1}, rounded, in its slot of shared memory; returns H_t and dq with H_t dy_t.

    j counts the steps of 8, inner those of 4.
    """
    LEFT: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    column = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.DotOperandLayout(1, MMA, 2)))[None, :]
    if RESET:
        h = h * number_at(gate[1], j, R, MMA)
    rounded = h.to(gl.bfloat16)
    slot.store(rounded)
    operand = gl.convert_layout(rounded, LEFT)
    z = run_step(h, operand, k, v, mixing, inner, V, WEIGHT, PHI, CHAINED, MMA)
    h = z + number_at(gate[0], j, R, MMA) * (h - z)
    after = gl.convert_layout(h.to(gl.bfloat16), LEFT)
    return h, mma_v2(after, pick(dy_columns, column - j), dq)


@gluon.jit
def sweep_step(
    c, dk, dv, dw, slot, k, v, q, dy, gate, v_columns, k_columns, mixing, transposed,
    inner, j, R: gl.constexpr, V: gl.constexpr, WEIGHT: gl.constexpr, PHI: gl.constexpr,
    RESET: gl.constexpr, CLIP: gl.constexpr, CHAINED: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """One step backwards: the new carry, dk, dv and dW with the step's share, df by lane."""
    LEFT: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    column = gl.arange(0, 8, layout=gl.SliceLayout(0, RIGHT))[None, :]
    operand = slot.load(LEFT)
    h = widened(gl.convert_layout(operand, MMA), V, MMA)
    z = run_step(h, operand, k, v, mixing, inner, V, WEIGHT, PHI, True, MMA)
    f = number_at(gate[0], j, R, MMA)
    if CLIP == "carry":
        c = clamp_one(c)
    if CHAINED:
        grad = outer(q, dy, inner, c, V, MMA)
    else:
        grad = c + outer(q, dy, inner, gl.zeros_like(c), V, MMA)
    if CLIP == "sum":
        grad = clamp_one(grad)
    gate_sum = lane_products(grad, h - z, R, V)
    d = slope(z, 1 - f, PHI) * grad
    rounded = d.to(gl.bfloat16)
    d_left = gl.convert_layout(rounded, LEFT)
    # D Wᵀ: D itself in float32, its rounding meets W - I only; c is a sum over all later steps
    if WEIGHT == "diagonal":
        c = f * grad + d * mixing[0]
    else:
        c = f * grad + d
    if WEIGHT == "dense":
        c = mma_v2(d_left, transposed, c)
    if RESET:
        c = c * number_at(gate[1], j, R, MMA)
    dk = mma_v2(d_left, pick(v_columns, column - j), dk)
    d_across = transposed_left(rounded, R, V, LEFT)
    dv = mma_v2(d_across, pick(k_columns, column - j), dv)
    if WEIGHT == "dense":  # transposed, so that D is the operand that it is for dv
        dw = mma_v2(d_across, slot.load(RIGHT), dw)
    elif WEIGHT == "diagonal":
        dw += h * d
    return c, dk, dv, dw, gate_sum


@gluon.jit
def store_columns(
    out, stride, sums, at, steps, rows, ROWS: gl.constexpr, EVEN: gl.constexpr, MMA: gl.constexpr
):
    """Writes sums (ROWS, 8), a column a step; `at` is the first one's step in the segment."""
    column = gl.arange(0, 8, layout=gl.SliceLayout(0, MMA))[None, :]
    r = gl.arange(0, ROWS, layout=gl.SliceLayout(1, MMA))[:, None]
    cells = out + (at.to(gl.int64) + column) * stride + r
    sums = sums.to(out.dtype.element_ty)
    if EVEN:
        gl.store(cells, sums)
    else:
        gl.store(cells, sums, mask=(column < steps) & (r < rows))


@gluon.jit
def store_gates(out, gate_sums, at, steps, N):
    """Writes df of 8 steps from the lanes' sums of each, (2, 32, 4) in shared memory."""
    FOLD: gl.constexpr = gl.BlockedLayout([4, 1], [8, 4], [1, 1], [0, 1])
    fold = gl.arange(0, 4, layout=gl.SliceLayout(0, FOLD))
    for part in gl.static_range(2):
        df = gl.sum(gate_sums.index(part).load(FOLD), axis=0)
        step = part * 4 + fold
        gl.store(out + (at.to(gl.int64) + step) * N, df, mask=step < steps)


@gluon.jit
def rebuild_four(
    h, dq, states, slot, k, v, gate, dy_columns, mixing, four, R: gl.constexpr, V: gl.constexpr,
    WEIGHT: gl.constexpr, PHI: gl.constexpr, RESET: gl.constexpr, CHAINED: gl.constexpr,
    MMA: gl.constexpr,
):  # fmt: skip
    """Four steps of `rebuild_step`; each of the four has its own buffer of states.

    (Writes to one buffer would wait for each other.)
    """
    for inner in gl.static_range(4):
        h, dq = rebuild_step(
            h, dq, states[inner].index(slot), k, v, gate, dy_columns, mixing, inner,
            four * 4 + inner, R, V, WEIGHT, PHI, RESET, CHAINED, MMA,
        )  # fmt: skip
    return h, dq


@gluon.jit
def sweep_four(
    c, dk, dv, dw, states, slot, gate_sums, k, v, q, dy, gate, v_columns, k_columns, mixing,
    transposed, four, R: gl.constexpr, V: gl.constexpr, WEIGHT: gl.constexpr, PHI: gl.constexpr,
    RESET: gl.constexpr, CLIP: gl.constexpr, CHAINED: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """Four steps of `sweep_step`, the last first."""
    c, dk, dv, dw, sum3 = sweep_step(
        c, dk, dv, dw, states[3].index(slot), k, v, q, dy, gate, v_columns, k_columns, mixing,
        transposed, 3, four * 4 + 3, R, V, WEIGHT, PHI, RESET, CLIP, CHAINED, MMA,
    )  # fmt: skip
    c, dk, dv, dw, sum2 = sweep_step(
        c, dk, dv, dw, states[2].index(slot), k, v, q, dy, gate, v_columns, k_columns, mixing,
        transposed, 2, four * 4 + 2, R, V, WEIGHT, PHI, RESET, CLIP, CHAINED, MMA,
    )  # fmt: skip
    c, dk, dv, dw, sum1 = sweep_step(
        c, dk, dv, dw, states[1].index(slot), k, v, q, dy, gate, v_columns, k_columns, mixing,
        transposed, 1, four * 4 + 1, R, V, WEIGHT, PHI, RESET, CLIP, CHAINED, MMA,
    )  # fmt: skip
    c, dk, dv, dw, sum0 = sweep_step(
        c, dk, dv, dw, states[0].index(slot), k, v, q, dy, gate, v_columns, k_columns, mixing,
        transposed, 0, four * 4, R, V, WEIGHT, PHI, RESET, CLIP, CHAINED, MMA,
    )  # fmt: skip
    sums = gl.permute(gl.join(gl.join(sum0, sum1), gl.join(sum2, sum3)), (0, 1, 3, 2))
    gate_sums.index(four).store(gl.reshape(sums, [32, 4]))
    return c, dk, dv, dw
