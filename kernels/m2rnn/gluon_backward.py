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

from kernels.m2rnn.gluon_forward import load_mixing
from kernels.m2rnn.gluon_steps import (
    no_sums,
    rebuild_block,
    rebuild_step,
    store_sums,
    sweep_block,
    sweep_step,
)


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
