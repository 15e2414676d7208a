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


@gluon.jit
def sweep_beside(
    c, after, h, dw, ahead, behind, swept, mine, other, gate_sums, inputs, strides, outputs,
    mixing, transposed, start, first, last, rows, N,
    K: gl.constexpr, R: gl.constexpr, V: gl.constexpr, C: gl.constexpr, WEIGHT: gl.constexpr,
    PHI: gl.constexpr, RESET: gl.constexpr, CLIP: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """Sweeps the chunk from `start`, whose states are in `mine`, and step by step with it rebuilds
    the chunk before into `other`: two chains that do not wait for each other.

    `ahead`, `behind` and `swept` are blocks loaded in time; those of the next call are returned.
    """
    for half in range(C // 8):
        place = C // 8 - 1 - half
        t = start + place * 8
        block = behind
        rebuilt = ahead
        current = swept
        few = gl.where(t - 8 < first, 0, last - t + 8)
        behind = rebuild_block(inputs, strides, t - 8, few, rows, R, V, RESET, MMA)
        swept = sweep_block(inputs, strides, t - 8, few, rows, R, V, MMA)
        following = gl.where(half + 1 < C // 8, start - C + half * 8 + 8, start - 2 * C)
        few = gl.where(following < first, 0, last - following)
        ahead = rebuild_block(inputs, strides, following, few, rows, R, V, RESET, MMA)
        sums = no_sums(R, V, MMA)
        for j in gl.static_range(7, -1, -1):
            gate_sum = gate_sums.index(j // 4).slice(j % 4, 1, 0)
            c, after, sums, dw = sweep_step(
                c, after, sums, dw, mine.index(place * 8 + j), gate_sum, block, current, mixing,
                transposed, j, R, V, WEIGHT, PHI, RESET, CLIP, MMA,
            )  # fmt: skip
            slot = other.index(half * 8 + 7 - j)
            h = rebuild_step(h, slot, rebuilt, mixing, 7 - j, R, V, WEIGHT, PHI, RESET, MMA)
        store_sums(sums, gate_sums, outputs, t - first, last - t, rows, N, K, R, V, MMA)
    return c, h, dw, ahead, behind, swept


@gluon.jit
def fast_backward(
    query, key, value, forget, weight, keep, grad_output, borders, carry,
    d_query, d_key, d_value, d_forget, d_weight,
    T, N, first, last, query_group, key_group, value_group, forget_group, weight_group,
    query_b, query_t, query_n, key_b, key_t, key_n,
    value_b, value_t, value_n, forget_b, forget_t, forget_n,
    K: gl.constexpr, V: gl.constexpr, R: gl.constexpr, C: gl.constexpr, WEIGHT: gl.constexpr,
    PHI: gl.constexpr, RESET: gl.constexpr, CLIP: gl.constexpr, INTERLEAVE: gl.constexpr,
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
        off = i != j_column
        transposed = gl.load(weight + j_column * V + i, mask=off, other=0.0).to(gl.bfloat16)
        dw = gl.load(d_weight + square_cells)
    elif WEIGHT == "diagonal":
        dw = gl.zeros([R, V], gl.float32, layout=MMA)
    states = gl.allocate_shared_memory(gl.bfloat16, [C, R, V], SHARED)
    gate_sums = gl.allocate_shared_memory(gl.float32, [2, 4, 32], PLAIN)

    c = gl.load(carry + cells, mask=inside, other=0.0)
    mixing = (diagonal, rest)
    inputs = (query, key, value, forget, keep, grad_output)
    strides = (query_t, key_t, value_t, forget_t, N * V)
    outputs = (d_query, d_key, d_value, d_forget)
    if WEIGHT != "dense":
        transposed = rest
    if WEIGHT == "identity":
        dw = c
    begin = (last - 1) // C * C
    border = borders + (begin // C).to(gl.int64) * N * K * V
    h = gl.load(border + cells, mask=inside, other=0.0).to(gl.float32)
    if INTERLEAVE:
        other_states = gl.allocate_shared_memory(gl.bfloat16, [C, R, V], SHARED)
        for early in range(C // 8):  # the last chunk: nothing to sweep beside it yet
            t = begin + early * 8
            block = rebuild_block(inputs, strides, t, last - t, rows, R, V, RESET, MMA)
            for j in gl.static_range(8):
                slot = states.index(early * 8 + j)
                h = rebuild_step(h, slot, block, mixing, j, R, V, WEIGHT, PHI, RESET, MMA)
        top = begin + C - 8
        behind = rebuild_block(inputs, strides, top, last - top, rows, R, V, RESET, MMA)
        swept = sweep_block(inputs, strides, top, last - top, rows, R, V, MMA)
        few = gl.where(begin - C < first, 0, last - begin + C)
        ahead = rebuild_block(inputs, strides, begin - C, few, rows, R, V, RESET, MMA)
        border -= N * K * V
        early_border = gl.load(border + cells, mask=inside & (begin - C >= first), other=0.0)
        for start in range(begin, first - 1, -2 * C):
            after = gl.convert_layout(h.to(gl.bfloat16), LEFT)
            h = early_border.to(gl.float32)
            border -= N * K * V
            early_border = gl.load(
                border + cells, mask=inside & (start - 2 * C >= first), other=0.0
            )
            c, h, dw, ahead, behind, swept = sweep_beside(
                c, after, h, dw, ahead, behind, swept, states, other_states, gate_sums, inputs,
                strides, outputs, mixing, transposed, start, first, last, rows, N,
                K, R, V, C, WEIGHT, PHI, RESET, CLIP, MMA,
            )  # fmt: skip
            if start - C >= first:
                after = gl.convert_layout(h.to(gl.bfloat16), LEFT)
                h = early_border.to(gl.float32)
                border -= N * K * V
                early_border = gl.load(
                    border + cells, mask=inside & (start - 3 * C >= first), other=0.0
                )
                c, h, dw, ahead, behind, swept = sweep_beside(
                    c, after, h, dw, ahead, behind, swept, other_states, states, gate_sums, inputs,
                    strides, outputs, mixing, transposed, start - C, first, last, rows, N,
                    K, R, V, C, WEIGHT, PHI, RESET, CLIP, MMA,
                )  # fmt: skip
    else:  # loops of four steps: longer ones miss the instruction cache
        for start in range(begin, first - 1, -C):
            for part in range(C // 8):
                t = start + part * 8
                block = rebuild_block(inputs, strides, t, last - t, rows, R, V, RESET, MMA)
                for four in range(2):
                    for inner in gl.static_range(4):
                        j = four * 4 + inner
                        slot = states.index(part * 8 + j)
                        h = rebuild_step(h, slot, block, mixing, j, R, V, WEIGHT, PHI, RESET, MMA)
            after = gl.convert_layout(h.to(gl.bfloat16), LEFT)
            border -= N * K * V
            early_border = gl.load(border + cells, mask=inside & (start - C >= first), other=0.0)
            for half in range(C // 8):
                place = C // 8 - 1 - half
                t = start + place * 8
                block = rebuild_block(inputs, strides, t, last - t, rows, R, V, RESET, MMA)
                swept = sweep_block(inputs, strides, t, last - t, rows, R, V, MMA)
                sums = no_sums(R, V, MMA)
                for back in range(2):
                    four = 1 - back
                    for inner in gl.static_range(3, -1, -1):
                        j = four * 4 + inner
                        c, after, sums, dw = sweep_step(
                            c, after, sums, dw, states.index(place * 8 + j),
                            gate_sums.index(four).slice(inner, 1, 0), block, swept, mixing,
                            transposed, j, R, V, WEIGHT, PHI, RESET, CLIP, MMA,
                        )  # fmt: skip
                store_sums(sums, gate_sums, outputs, t - first, last - t, rows, N, K, R, V, MMA)
            h = early_border.to(gl.float32)
    gl.store(carry + cells, c, mask=inside)
    if WEIGHT == "dense":
        gl.store(d_weight + square_cells, dw)
    elif WEIGHT == "diagonal":
        column = gl.arange(0, V, layout=gl.SliceLayout(0, MMA))
        old = gl.load(d_weight + column)
        gl.store(d_weight + column, old + gl.sum(dw, axis=0))
