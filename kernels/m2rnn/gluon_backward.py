"""The fast M²RNN backward: a chunk is rebuilt into shared memory, then swept, by the same warp.

The equations are those of `triton_backward`. All products over rows or over V are matrix
instructions: dq, dk and dv gather 8 steps in an accumulator, dW the whole sequence. What is a
row tile's or a head's share is summed afterwards, in a fixed order.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportAssignmentType=false, reportOptionalMemberAccess=false
# (Gluon's own types are those of its compiler)
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.m2rnn.gluon_beside import sweep_chunks_beside
from kernels.m2rnn.gluon_forward import load_mixing
from kernels.m2rnn.gluon_loads import column_steps, fetch_rows
from kernels.m2rnn.gluon_operands import anew
from kernels.m2rnn.gluon_steps import (
    gates,
    inputs_at,
    outer_operands,
    rebuild_four,
    store_columns,
    store_gates,
    sweep_four,
)


@gluon.jit
def rebuild_block(
    h, states, slot, inputs, strides, outputs, mixing, t, first, last, rows,
    K: gl.constexpr, R: gl.constexpr, V: gl.constexpr, WEIGHT: gl.constexpr, PHI: gl.constexpr,
    RESET: gl.constexpr, EVEN: gl.constexpr, CHAINED: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """Runs 8 steps from t on again: keeps their states in `states` and writes their dq."""
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    at, steps = inputs_at(inputs, strides, t), last - t
    gate = gates(at, strides, steps, RESET, EVEN, MMA)
    dy_columns = column_steps(at[5], strides[4], steps, V, V, RIGHT, EVEN)
    dq = gl.zeros([R, 8], gl.float32, layout=MMA)
    for four in range(2):
        k, v = outer_operands(
            at[1], at[2], strides[1], strides[2], 4 * four, steps, rows, R, V, EVEN, MMA
        )
        h, dq = rebuild_four(
            h, dq, states, slot + four, k, v, gate, dy_columns, mixing, four,
            R, V, WEIGHT, PHI, RESET, CHAINED, MMA,
        )  # fmt: skip
    store_columns(outputs[0], K, dq, t - first, steps, rows, R, EVEN, MMA)
    return h


@gluon.jit
def sweep_block(
    c, dw, states, slot, gate_sums, inputs, strides, outputs, mixing, transposed,
    t, first, last, rows, N,
    K: gl.constexpr, R: gl.constexpr, V: gl.constexpr, WEIGHT: gl.constexpr, PHI: gl.constexpr,
    RESET: gl.constexpr, CLIP: gl.constexpr, EVEN: gl.constexpr, CHAINED: gl.constexpr,
    MMA: gl.constexpr,
):  # fmt: skip
    """Sweeps 8 steps from t on, whose states are in `states`, and writes their dk, dv and df."""
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    at, steps = inputs_at(inputs, strides, t), last - t
    gate = gates(at, strides, steps, RESET, EVEN, MMA)
    v_columns = column_steps(at[2], strides[2], steps, V, V, RIGHT, EVEN)
    k_columns = column_steps(at[1], strides[1], steps, rows, R, RIGHT, EVEN)
    dk = gl.zeros([R, 8], gl.float32, layout=MMA)
    dv = gl.zeros([V, 8], gl.float32, layout=MMA)
    for back in range(2):
        four = 1 - back
        k, v = outer_operands(
            at[1], at[2], strides[1], strides[2], 4 * four, steps, rows, R, V, EVEN, MMA
        )
        q, dy = outer_operands(
            at[0], at[5], strides[0], strides[4], 4 * four, steps, rows, R, V, EVEN, MMA
        )
        c, dk, dv, dw = sweep_four(
            c, dk, dv, dw, states, slot + four, gate_sums, k, v, q, dy, gate, v_columns,
            k_columns, mixing, transposed, four, R, V, WEIGHT, PHI, RESET, CLIP, CHAINED, MMA,
        )  # fmt: skip
    store_columns(outputs[1], K, dk, t - first, steps, rows, R, EVEN, MMA)
    store_columns(outputs[2], N * V, dv, t - first, steps, V, V, EVEN, MMA)
    store_gates(outputs[3], gate_sums, t - first, steps, N)
    return c, dw


@gluon.jit
def fast_backward(
    query, key, value, forget, weight, keep, grad_output, borders, carry,
    d_query, d_key, d_value, d_forget, d_weight,
    T, N, first, last, query_group, key_group, value_group, forget_group, weight_group,
    query_b, query_t, query_n, key_b, key_t, key_n,
    value_b, value_t, value_n, forget_b, forget_t, forget_n,
    K: gl.constexpr, V: gl.constexpr, R: gl.constexpr, C: gl.constexpr, WEIGHT: gl.constexpr,
    PHI: gl.constexpr, RESET: gl.constexpr, CLIP: gl.constexpr, INTERLEAVE: gl.constexpr,
    EVEN: gl.constexpr,
):  # fmt: skip
    """Sweeps the steps [first, last), first a multiple of C; S = last - first.

    Reads and rewrites `carry`, the gradient of the state after `last` (B, N, K, V), and adds to
    d_weight (tiles, B, N, V, V) or (tiles, B, N, V), both float32. Writes shares: of d_query and
    d_key (B, N, S, K), of d_value (tiles, B, S, N, V) and of d_forget (tiles, B, S, N).
    """
    MMA: gl.constexpr = gl.NVMMADistributedLayout(
        version=[2, 0], warps_per_cta=[1, 1], instr_shape=[16, 8]
    )
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    CHAINED: gl.constexpr = not INTERLEAVE  # see gluon_forward.start
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
    last_carry = carry
    all_weights = d_weight
    carry += (b * N + n) * K * V + tile * R * V
    r = gl.arange(0, R, layout=gl.SliceLayout(1, MMA))[:, None]
    columns = gl.arange(0, V, layout=gl.SliceLayout(0, MMA))[None, :]
    cells = r * V + columns
    inside = (r < rows) & (columns < V)
    square: gl.constexpr = V * V if WEIGHT == "dense" else V
    weight += n // weight_group * square
    d_weight += ((tile * B + b) * N + n) * square
    mixing = load_mixing(weight, V, WEIGHT, MMA)
    transposed = mixing[1]
    i = gl.arange(0, V, layout=gl.SliceLayout(1, RIGHT))[:, None]
    j = gl.arange(0, V, layout=gl.SliceLayout(0, RIGHT))[None, :]
    square_cells = columns * V + gl.arange(0, V, layout=gl.SliceLayout(1, MMA))[:, None]  # of dWᵀ
    if WEIGHT == "dense":
        w = gl.load(weight + j * V + i).to(gl.float32)
        transposed = gl.where(i == j, w - 1, w).to(gl.bfloat16)
        dw = gl.load(d_weight + square_cells)
    else:
        dw = gl.zeros([R, V], gl.float32, layout=MMA)
    # one buffer for every fourth step: writes to one would wait for each other
    SLOTS: gl.constexpr = C // 2 if INTERLEAVE else C // 4
    states = (
        gl.allocate_shared_memory(gl.bfloat16, [SLOTS, R, V], SHARED),
        gl.allocate_shared_memory(gl.bfloat16, [SLOTS, R, V], SHARED),
        gl.allocate_shared_memory(gl.bfloat16, [SLOTS, R, V], SHARED),
        gl.allocate_shared_memory(gl.bfloat16, [SLOTS, R, V], SHARED),
    )
    gate_sums = gl.allocate_shared_memory(gl.float32, [2, 32, 4], PLAIN)

    c = gl.load(carry + cells, mask=inside, other=0.0)
    inputs = (query, key, value, forget, keep, grad_output)
    strides = (query_t, key_t, value_t, forget_t, N * V)
    outputs = (d_query, d_key, d_value, d_forget)
    begin = (last - 1) // C * C
    border = borders + (begin // C).to(gl.int64) * N * K * V
    if INTERLEAVE:
        h = gl.load(border + cells, mask=inside, other=0.0).to(gl.float32)
        for part in range(C // 8):  # the last chunk: nothing to sweep beside it yet
            h = rebuild_block(
                h, states, part * 2, inputs, strides, outputs, mixing, begin + part * 8, first,
                last, rows, K, R, V, WEIGHT, PHI, RESET, EVEN, CHAINED, MMA,
            )  # fmt: skip
        c, dw = sweep_chunks_beside(
            c, h, dw, states, gate_sums, inputs, strides, outputs, border,
            N.to(gl.int64) * K * V, mixing, transposed, begin, first, last, cells, inside, rows, N,
            K, R, V, C, WEIGHT, PHI, RESET, CLIP, EVEN, CHAINED, MMA,
        )  # fmt: skip
    else:  # loops of four steps: longer ones miss the instruction cache
        for start in range(begin, first - 1, -C):
            h = gl.load(border + cells, mask=inside, other=0.0).to(gl.float32)
            for part in range(C // 8):
                h = rebuild_block(
                    h, states, part * 2, inputs, strides, outputs, mixing, start + part * 8, first,
                    last, rows, K, R, V, WEIGHT, PHI, RESET, EVEN, CHAINED, MMA,
                )  # fmt: skip
            border -= N * K * V
            fetch_rows(border, 64, 0, R * V // 64 - 1, 1, MMA)  # 128 bytes each
            for back in range(C // 8):
                part = C // 8 - 1 - back
                c, dw = sweep_block(
                    c, dw, states, part * 2, gate_sums, inputs, strides, outputs, mixing,
                    transposed, start + part * 8, first, last, rows, N,
                    K, R, V, WEIGHT, PHI, RESET, CLIP, EVEN, CHAINED, MMA,
                )  # fmt: skip
    head = b * N + anew(gl.program_id(0))  # its addresses are not kept meanwhile
    gl.store(last_carry + head * K * V + tile * R * V + cells, c, mask=inside)
    if WEIGHT == "dense":
        gl.store(all_weights + (tile * B * N + head) * square + square_cells, dw)
    elif WEIGHT == "diagonal":
        column = gl.arange(0, V, layout=gl.SliceLayout(0, MMA))
        old = gl.load(d_weight + column)
        gl.store(d_weight + column, old + gl.sum(dw, axis=0))
