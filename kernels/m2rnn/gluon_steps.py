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

from kernels.m2rnn.gluon_forward import mix
from kernels.m2rnn.gluon_operands import (
    clamp_one,
    column_steps,
    lane_sums,
    nonlinearity,
    number_at,
    pick,
    right,
    row_steps,
    slope,
    step_numbers,
    transposed_left,
    value_steps,
)


@gluon.jit
def rebuild_block(
    inputs, strides, t, steps, rows,
    R: gl.constexpr, V: gl.constexpr, RESET: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """What 8 steps from t on need to be run again: k, v, the gates and the resets."""
    key, value, forget, keep = inputs[1], inputs[2], inputs[3], inputs[4]
    t = t.to(gl.int64)
    f = step_numbers(forget + t * strides[3], strides[3], steps, MMA)
    kept = f
    if RESET:
        kept = step_numbers(keep + t, 1, steps, MMA)
    LEFT: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    return (
        row_steps(key + t * strides[1], strides[1], steps, rows, R, LEFT),
        value_steps(value + t * strides[2], strides[2], steps, V, RIGHT),
        f,
        kept,
    )


@gluon.jit
def sweep_block(
    inputs, strides, t, steps, rows, R: gl.constexpr, V: gl.constexpr, MMA: gl.constexpr
):
    """What the reverse sweep of 8 steps needs besides: q and dy for the outer product, and dy, v
    and k as columns for dq, dk and dv."""
    LEFT: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    t = t.to(gl.int64)
    query = inputs[0] + t * strides[0]
    key = inputs[1] + t * strides[1]
    value = inputs[2] + t * strides[2]
    grad_output = inputs[5] + t * strides[4]
    return (
        row_steps(query, strides[0], steps, rows, R, LEFT),
        value_steps(grad_output, strides[4], steps, V, RIGHT),
        column_steps(grad_output, strides[4], steps, V, V, RIGHT),
        column_steps(value, strides[2], steps, V, V, RIGHT),
        column_steps(key, strides[1], steps, rows, R, RIGHT),
    )


@gluon.jit
def run_step(
    h, operand, block, mixing, j,
    R: gl.constexpr, V: gl.constexpr, WEIGHT: gl.constexpr, PHI: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """Z of step j of a block, from H_{t-1} in float32 and as an operand."""
    row = gl.arange(0, 16, layout=gl.SliceLayout(1, gl.DotOperandLayout(1, MMA, 2)))[:, None] // 2
    zero = gl.zeros([R, V], gl.float32, layout=MMA)
    outer = mma_v2(block[0], pick(block[1], row - j), zero)
    return nonlinearity(mix(h, operand, outer, mixing[0], mixing[1], WEIGHT), PHI)


@gluon.jit
def rebuild_step(
    h, slot, block, mixing, j, R: gl.constexpr, V: gl.constexpr, WEIGHT: gl.constexpr,
    PHI: gl.constexpr, RESET: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """Keeps H_{t-1}, rounded, in its slot of shared memory and returns H_t."""
    if RESET:
        h = h * number_at(block[3], j, R, MMA)
    rounded = h.to(gl.bfloat16)
    slot.store(rounded)
    operand = gl.convert_layout(rounded, gl.DotOperandLayout(0, MMA, 2))
    z = run_step(h, operand, block, mixing, j, R, V, WEIGHT, PHI, MMA)
    return z + number_at(block[2], j, R, MMA) * (h - z)


@gluon.jit
def sweep_step(
    c, after, sums, dw, slot, gate_sum, block, swept, mixing, transposed, j,
    R: gl.constexpr, V: gl.constexpr, WEIGHT: gl.constexpr, PHI: gl.constexpr,
    RESET: gl.constexpr, CLIP: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """One step backwards: the new carry, H_{t-1} as an operand, and the sums with its share."""
    LEFT: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    row = gl.arange(0, 16, layout=gl.SliceLayout(1, RIGHT))[:, None] // 2
    column = gl.arange(0, 8, layout=gl.SliceLayout(0, RIGHT))[None, :]
    q, dy, dy_columns, v_columns, k_columns = swept
    dq, dk, dv = sums
    operand = slot.load(LEFT)
    h = gl.convert_layout(operand, MMA).to(gl.float32)
    z = run_step(h, operand, block, mixing, j, R, V, WEIGHT, PHI, MMA)
    gate = number_at(block[2], j, R, MMA)
    if RESET:  # the state stored for the next step may have been zeroed
        after = gl.convert_layout((z + gate * (h - z)).to(gl.bfloat16), LEFT)
    dq = mma_v2(after, pick(dy_columns, column - j), dq)
    if CLIP == "carry":
        c = clamp_one(c)
    zero = gl.zeros([R, V], gl.float32, layout=MMA)
    grad = c + mma_v2(q, pick(dy, row - j), zero)
    if CLIP == "sum":
        grad = clamp_one(grad)
    gate_sum.store(lane_sums(grad * (h - z), R, V))
    d = slope(z, 1 - gate, PHI) * grad
    c = gate * grad
    rounded = d.to(gl.bfloat16)
    d_left = gl.convert_layout(rounded, LEFT)
    # D Wᵀ with the diagonal in float32: near W = I, c is a sum over all later steps
    if WEIGHT == "identity":
        c += d
    else:
        c += d * mixing[0]
        if WEIGHT == "dense":
            c = mma_v2(d_left, transposed, c)
    if RESET:
        c = c * number_at(block[3], j, R, MMA)
    dk = mma_v2(d_left, pick(v_columns, column - j), dk)
    dv = mma_v2(transposed_left(rounded, R, V, LEFT), pick(k_columns, column - j), dv)
    if WEIGHT == "dense":
        dw = mma_v2(slot.permute((1, 0)).load(LEFT), right(rounded, R, V, RIGHT), dw)
    elif WEIGHT == "diagonal":
        dw += h * d
    return c, operand, (dq, dk, dv), dw


@gluon.jit
def no_sums(R: gl.constexpr, V: gl.constexpr, MMA: gl.constexpr):
    """Empty sums of a block: dq and dk (R, 8), dv transposed (V, 8)."""
    rows = gl.zeros([R, 8], gl.float32, layout=MMA)
    return rows, rows, gl.zeros([V, 8], gl.float32, layout=MMA)


@gluon.jit
def store_sums(
    sums, gate_sums, outputs, at, steps, rows, N,
    K: gl.constexpr, R: gl.constexpr, V: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """Writes a block's dq, dk, dv and df; `at` is its first step in the segment."""
    FOLD: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [1, 1], [1, 0])
    d_query, d_key, d_value, d_forget = outputs
    column = gl.arange(0, 8, layout=gl.SliceLayout(0, MMA))[None, :]
    r = gl.arange(0, R, layout=gl.SliceLayout(1, MMA))[:, None]
    v = gl.arange(0, V, layout=gl.SliceLayout(1, MMA))[:, None]
    fold = gl.arange(0, 4, layout=gl.SliceLayout(1, FOLD))
    at = at.to(gl.int64)
    in_time = (column < steps) & (r < rows)
    gl.store(d_query + (at + column) * K + r, sums[0], mask=in_time)
    gl.store(d_key + (at + column) * K + r, sums[1], mask=in_time)
    gl.store(d_value + (at + column) * N * V + v, sums[2], mask=(column < steps) & (v < V))
    for part in gl.static_range(2):
        df = gl.sum(gate_sums.index(part).load(FOLD), axis=1)
        step = part * 4 + fold
        gl.store(d_forget + (at + step) * N, df, mask=step < steps)
