"""The fast M²RNN backward: a chunk is rebuilt into shared memory, then swept, by the same warp.

The equations are those of `triton_backward`. All products over rows or over V are matrix
instructions: dq, dk and dv gather 8 steps in an accumulator, dW the whole sequence. What is a
row tile's or a head's share goes out in float32 and is summed in a fixed order.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportAssignmentType=false, reportOptionalMemberAccess=false
# (Gluon's own types are those of its compiler)
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from kernels.m2rnn.gluon_forward import load_mixing, mix
from kernels.m2rnn.gluon_operands import (
    clamp_one,
    column_steps,
    gates,
    keeps,
    lane_sums,
    nonlinearity,
    pick,
    row_steps,
    stacked_steps,
    through_nonlinearity,
    value_steps,
)


@gluon.jit
def fast_backward(
    query, key, value, forget, weight, keep, grad_output, borders, carry,
    d_query, d_key, d_value, d_forget, d_weight,
    T, N, first, last, query_group, key_group, value_group, forget_group, weight_group,
    query_b, query_t, query_n, key_b, key_t, key_n,
    value_b, value_t, value_n, forget_b, forget_t, forget_n,
    K: gl.constexpr, V: gl.constexpr, R: gl.constexpr, C: gl.constexpr, WEIGHT: gl.constexpr,
    PHI: gl.constexpr, RESET: gl.constexpr, CLIP: gl.constexpr,
):  # fmt: skip
    """Sweeps the steps [first, last), first a multiple of C; S = last - first.

    Reads and rewrites `carry`, the gradient of the state after `last` (B, N, K, V), and adds to
    d_weight (tiles, B, N, V, V) or (tiles, B, N, V). Writes d_query and d_key (B, N, S, K),
    d_value (tiles, B, S, N, V) and d_forget (tiles, B, S, N). All of these are float32.
    """
    MMA: gl.constexpr = gl.NVMMADistributedLayout(
        version=[2, 0], warps_per_cta=[1, 1], instr_shape=[16, 8]
    )
    LEFT: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    SHARED: gl.constexpr = gl.SwizzledSharedLayout(8, 64 // V, V // 8, [1, 0])
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    FOLD: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [1, 1], [1, 0])
    n = gl.program_id(0).to(gl.int64)
    b = gl.program_id(1).to(gl.int64)
    tile = gl.program_id(2).to(gl.int64)
    B = gl.num_programs(1).to(gl.int64)
    rows = K - gl.program_id(2) * R
    S = last - first
    query += b * query_b + n // query_group * query_n + tile * R
    key += b * key_b + n // key_group * key_n + tile * R
    value += b * value_b + n // value_group * value_n
    forget += b * forget_b + n // forget_group * forget_n
    keep += b * T
    grad_output += (b * T * N + n) * V
    borders += (b * gl.cdiv(T, C) * N + n) * K * V + tile * R * V
    d_query += (b * N + n) * S * K + tile * R
    d_key += (b * N + n) * S * K + tile * R
    d_value += ((tile * B + b) * S * N + n) * V
    d_forget += (tile * B + b) * S * N + n
    carry += (b * N + n) * K * V + tile * R * V
    r = gl.arange(0, R, layout=gl.SliceLayout(1, MMA))[:, None]
    columns = gl.arange(0, V, layout=gl.SliceLayout(0, MMA))[None, :]
    cells = r * V + columns
    inside = (r < rows) & (columns < V)
    square: gl.constexpr = V * V if WEIGHT == "dense" else V
    weight += n // weight_group * square
    d_weight += ((tile * B + b) * N + n) * square
    diagonal, rest = load_mixing(weight, V, WEIGHT, MMA)
    i = gl.arange(0, V, layout=gl.SliceLayout(1, RIGHT))[:, None]
    j_column = gl.arange(0, V, layout=gl.SliceLayout(0, RIGHT))[None, :]
    square_cells = gl.arange(0, V, layout=gl.SliceLayout(1, MMA))[:, None] * V + columns
    if WEIGHT == "dense":
        transposed = gl.load(weight + j_column * V + i).to(gl.bfloat16)
        dw = gl.load(d_weight + square_cells)
    elif WEIGHT == "diagonal":
        dw = gl.zeros([R, V], gl.float32, layout=MMA)
    states = gl.allocate_shared_memory(gl.bfloat16, [C, R, V], SHARED)
    transposing = gl.allocate_shared_memory(gl.bfloat16, [R, V], SHARED)
    gate_sums = gl.allocate_shared_memory(gl.float32, [8, 32], PLAIN)
    step_row = gl.arange(0, 16, layout=gl.SliceLayout(1, RIGHT))[:, None] // 2
    step_column = gl.arange(0, 8, layout=gl.SliceLayout(0, RIGHT))[None, :]
    stacked_row = gl.arange(0, 16, layout=gl.SliceLayout(1, LEFT))[:, None]
    out_column = gl.arange(0, 8, layout=gl.SliceLayout(0, MMA))[None, :]
    out_row = gl.arange(0, 16, layout=gl.SliceLayout(1, MMA))[:, None]
    fold_row = gl.arange(0, 8, layout=gl.SliceLayout(1, FOLD))

    c = gl.load(carry + cells, mask=inside, other=0.0)
    for back in range(gl.cdiv(S, C)):
        chunk = gl.cdiv(last, C) - 1 - back
        rounded = gl.load(borders + chunk.to(gl.int64) * N * K * V + cells, mask=inside, other=0.0)
        h = rounded.to(gl.float32)
        for block in range(C // 8):
            t = (chunk * C + block * 8).to(gl.int64)
            steps = last - chunk * C - block * 8
            k = row_steps(key + t * key_t, key_t, steps, rows, R, LEFT)
            v = value_steps(value + t * value_t, value_t, steps, V, RIGHT)
            f = gates(forget + t * forget_t, forget_t, steps)
            kept = keeps(keep + t, steps)
            for j in gl.static_range(8):
                if RESET:
                    h = h * kept[j]
                    rounded = h.to(gl.bfloat16)
                states.index(block * 8 + j).store(rounded)
                operand = gl.convert_layout(rounded, LEFT)
                x = mix(h, operand, (k, pick(v, step_row - j)), diagonal, rest, WEIGHT)
                z = nonlinearity(x, PHI)
                h = z + f[j] * (h - z)
                rounded = h.to(gl.bfloat16)
        after = gl.convert_layout(rounded, LEFT)  # H_t, as an operand
        for block_back in range(C // 8):
            block = C // 8 - 1 - block_back
            t = (chunk * C + block * 8).to(gl.int64)
            steps = last - chunk * C - block * 8
            k = row_steps(key + t * key_t, key_t, steps, rows, R, LEFT)
            q = row_steps(query + t * query_t, query_t, steps, rows, R, LEFT)
            v = value_steps(value + t * value_t, value_t, steps, V, RIGHT)
            dy = value_steps(grad_output + t * N * V, N * V, steps, V, RIGHT)
            v_columns = column_steps(value + t * value_t, value_t, steps, V, V, RIGHT)
            dy_columns = column_steps(grad_output + t * N * V, N * V, steps, V, V, RIGHT)
            k_stacked = stacked_steps(key + t * key_t, key_t, steps, rows, R, LEFT)
            f = gates(forget + t * forget_t, forget_t, steps)
            kept = keeps(keep + t, steps)
            dq = gl.zeros([R, 8], gl.float32, layout=MMA)
            dk = gl.zeros([R, 8], gl.float32, layout=MMA)
            dv = gl.zeros([16, V], gl.float32, layout=MMA)
            for j in gl.static_range(7, -1, -1):
                slot = states.index(block * 8 + j)
                operand = slot.load(LEFT)
                h = gl.convert_layout(operand, MMA).to(gl.float32)
                x = mix(h, operand, (k, pick(v, step_row - j)), diagonal, rest, WEIGHT)
                z = nonlinearity(x, PHI)
                if RESET:  # the state stored for the next step may have been zeroed
                    after = gl.convert_layout((z + f[j] * (h - z)).to(gl.bfloat16), LEFT)
                dq = mma_v2(after, pick(dy_columns, step_column - j), dq)
                if CLIP == "carry":
                    c = clamp_one(c)
                grad = mma_v2(q, pick(dy, step_row - j), c)
                if CLIP == "sum":
                    grad = clamp_one(grad)
                gate_sums.slice(j, 1, 0).store(lane_sums(grad * (h - z), R, V))
                written = (1 - f[j]) * grad
                d = through_nonlinearity(written, z, PHI)
                d_rounded = d.to(gl.bfloat16)
                d_operand = gl.convert_layout(d_rounded, LEFT)
                c = grad - written
                if WEIGHT == "dense":
                    c = mma_v2(d_operand, transposed, c)
                elif WEIGHT == "diagonal":
                    c += d * diagonal
                else:
                    c += d
                if RESET:
                    c = c * kept[j]
                dk = mma_v2(d_operand, pick(v_columns, step_column - j), dk)
                transposing.store(d_rounded)
                d_right = transposing.load(RIGHT)
                dv = mma_v2(pick(k_stacked, stacked_row - j), d_right, dv)
                if WEIGHT == "dense":
                    dw = mma_v2(slot.permute((1, 0)).load(LEFT), d_right, dw)
                elif WEIGHT == "diagonal":
                    dw += h * d
                after = operand
            at = t - first
            in_time = (out_column < steps) & (r < rows)
            gl.store(d_query + (at + out_column) * K + r, dq, mask=in_time)
            gl.store(d_key + (at + out_column) * K + r, dk, mask=in_time)
            in_time = (out_row < 8) & (out_row < steps) & (columns < V)
            gl.store(d_value + (at + out_row) * N * V + columns, dv, mask=in_time)
            df = gl.sum(gate_sums.load(FOLD), axis=1)
            gl.store(d_forget + (at + fold_row) * N, df, mask=fold_row < steps)
    gl.store(carry + cells, c, mask=inside)
    if WEIGHT == "dense":
        gl.store(d_weight + square_cells, dw)
    elif WEIGHT == "diagonal":
        column = gl.arange(0, V, layout=gl.SliceLayout(0, MMA))
        old = gl.load(d_weight + column)
        gl.store(d_weight + column, old + gl.sum(dw, axis=0))
