"""The fast M²RNN forward: one warp owns R rows of one head's state, with no barrier between warps.

Written in Gluon (Triton with explicit layouts): see `gluon_operands` for how a step is made of
matrix instructions. For what it covers see `fast_scan`; `triton_forward` has the rest.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportAssignmentType=false, reportOptionalMemberAccess=false
# (Gluon's own types are those of its compiler)
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from kernels.m2rnn.gluon_loads import (
    column_steps,
    eight_rows,
    eight_values,
    fetch_rows,
    number_at,
    row_steps,
    step_numbers,
    value_steps,
)
from kernels.m2rnn.gluon_operands import (
    held,
    held_pair,
    hold,
    nonlinearity,
    outer,
    pick,
    transposed_left,
)


@gluon.jit
def add_written(h, written, diagonal, WEIGHT: gl.constexpr):
    """k vᵀ, and of h W what h meets in float32: all of it or, for a dense W, that of W = I."""
    return h * diagonal + written if WEIGHT == "diagonal" else h + written


@gluon.jit
def start(
    h, k, v, step, diagonal, V: gl.constexpr, WEIGHT: gl.constexpr, CHAINED: gl.constexpr,
    MMA: gl.constexpr,
):  # fmt: skip
    """`add_written` of k vᵀ by `outer`.

    CHAINED lets h start the product's accumulator: R V / 32 additions less, one product's latency
    more in the chain from step to step.
    """
    if CHAINED and WEIGHT != "diagonal":
        x = outer(k, v, step, h, V, MMA)
    else:
        x = add_written(h, outer(k, v, step, gl.zeros_like(h), V, MMA), diagonal, WEIGHT)
    return x


@gluon.jit
def mix(x, operand, rest, WEIGHT: gl.constexpr):
    """h W + k vᵀ from its start: h's rounding meets W - I only, which near W = I is little."""
    return mma_v2(operand, rest, x) if WEIGHT == "dense" else x


@gluon.jit
def load_mixing(weight, V: gl.constexpr, WEIGHT: gl.constexpr, MMA: gl.constexpr):
    """A diagonal W (1, V) in float32, and a dense W's W - I as a right operand (V, V), bfloat16."""
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    columns = gl.arange(0, V, layout=gl.SliceLayout(0, MMA))[None, :]
    i = gl.arange(0, V, layout=gl.SliceLayout(1, RIGHT))[:, None]
    j = gl.arange(0, V, layout=gl.SliceLayout(0, RIGHT))[None, :]
    diagonal = gl.zeros([1, V], gl.float32, layout=MMA)
    rest = gl.zeros([V, V], gl.bfloat16, layout=RIGHT)
    if WEIGHT == "diagonal":
        diagonal = gl.load(weight + columns).to(gl.float32)
    elif WEIGHT == "dense":
        w = gl.load(weight + i * V + j).to(gl.float32)
        rest = gl.where(i == j, w - 1, w).to(gl.bfloat16)
    return diagonal, rest


@gluon.jit
def four_written(
    key, value, key_t, value_t, after, steps, rows,
    R: gl.constexpr, V: gl.constexpr, EVEN: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """k and v of 4 steps, `after` steps behind key and value, for `outer`."""
    k = row_steps(key + after * key_t, key_t, steps - after, rows, R, V, EVEN, MMA)
    v = value_steps(value + after * value_t, value_t, steps - after, R, V, EVEN, MMA)
    return hold(k), hold(v)


@gluon.jit
def eight_written(
    key, value, key_t, value_t, steps, rows, R: gl.constexpr, V: gl.constexpr, MMA: gl.constexpr
):
    """k and v of 8 steps, for mma_v2: with few warps, where latency counts, it was faster."""
    return (
        eight_rows(key, key_t, steps, rows, R, gl.DotOperandLayout(0, MMA, 2)),
        eight_values(value, value_t, steps, V, gl.DotOperandLayout(1, MMA, 2)),
    )


@gluon.jit
def fast_forward(
    query, key, value, forget, weight, keep, state, output, borders,
    T, N, first, last, query_group, key_group, value_group, forget_group, weight_group,
    query_b, query_t, query_n, key_b, key_t, key_n,
    value_b, value_t, value_n, forget_b, forget_t, forget_n,
    K: gl.constexpr, V: gl.constexpr, R: gl.constexpr, C: gl.constexpr, WEIGHT: gl.constexpr,
    PHI: gl.constexpr, RESET: gl.constexpr, SAVE: gl.constexpr, EVEN: gl.constexpr,
    FOUR: gl.constexpr, AHEAD: gl.constexpr, CHAINED: gl.constexpr, LATE: gl.constexpr,
    LEVEL: gl.constexpr,
):  # fmt: skip
    """Scans the steps [first, last), first a multiple of C; S = last - first.

    Reads and rewrites `state` (B, N, K, V), float32. Writes y, one share for each row tile
    (tiles, B, S, N, V), and, with SAVE, the state before every C-th step
    (B, ceil(T / C), N, K, V), bfloat16.

    FOUR, CHAINED: k vᵀ by `outer`, four steps' vectors at once, and as in `start`; else eight at
    once, by mma_v2. AHEAD: with FOUR, how many steps ahead they are loaded, 4 or 8. LATE: y of 8
    steps from shared memory, behind them, instead of from lane to lane in each. LEVEL: the cache
    that is asked for v and f ahead, 0 for none.
    """
    MMA: gl.constexpr = gl.NVMMADistributedLayout(
        version=[2, 0], warps_per_cta=[1, 1], instr_shape=[16, 8]
    )
    LEFT: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    n = gl.program_id(0).to(gl.int64)
    b = gl.program_id(1).to(gl.int64)
    tile = gl.program_id(2).to(gl.int64)
    B = gl.num_programs(1).to(gl.int64)
    rows = K - gl.program_id(2) * R
    begin = first.to(gl.int64)
    query += b * query_b + n // query_group * query_n + begin * query_t + tile * R
    key += b * key_b + n // key_group * key_n + begin * key_t + tile * R
    value += b * value_b + n // value_group * value_n + begin * value_t
    forget += b * forget_b + n // forget_group * forget_n + begin * forget_t
    keep += b * T + begin
    output += ((tile * B + b) * (last - first) * N + n) * V
    borders += ((b * gl.cdiv(T, C) + begin // C) * N + n) * K * V + tile * R * V
    state += (b * N + n) * K * V + tile * R * V
    r = gl.arange(0, R, layout=gl.SliceLayout(1, MMA))[:, None]
    columns = gl.arange(0, V, layout=gl.SliceLayout(0, MMA))[None, :]
    cells = r * V + columns
    inside = (r < rows) & (columns < V)
    square: gl.constexpr = V * V if WEIGHT == "dense" else V
    diagonal, rest = load_mixing(weight + n // weight_group * square, V, WEIGHT, MMA)
    step_row = gl.arange(0, 16, layout=gl.SliceLayout(1, RIGHT))[:, None] // 2
    step_column = gl.arange(0, 8, layout=gl.SliceLayout(0, RIGHT))[None, :]
    y_row = gl.arange(0, V, layout=gl.SliceLayout(1, MMA))[:, None]
    y_step = gl.arange(0, 8, layout=gl.SliceLayout(0, MMA))[None, :]

    steps = last - first
    if LATE:
        SHARED: gl.constexpr = gl.SwizzledSharedLayout(8, 64 // V, V // 8, [1, 0])
        slots = (
            gl.allocate_shared_memory(gl.bfloat16, [R, V], SHARED),
            gl.allocate_shared_memory(gl.bfloat16, [R, V], SHARED),
            gl.allocate_shared_memory(gl.bfloat16, [R, V], SHARED),
            gl.allocate_shared_memory(gl.bfloat16, [R, V], SHARED),
            gl.allocate_shared_memory(gl.bfloat16, [R, V], SHARED),
            gl.allocate_shared_memory(gl.bfloat16, [R, V], SHARED),
            gl.allocate_shared_memory(gl.bfloat16, [R, V], SHARED),
            gl.allocate_shared_memory(gl.bfloat16, [R, V], SHARED),
        )
    if FOUR:
        early = four_written(key, value, key_t, value_t, 0, steps, rows, R, V, EVEN, MMA)
        late = early
        if AHEAD == 8:
            late = four_written(key, value, key_t, value_t, 4, steps, rows, R, V, EVEN, MMA)
    else:
        early = eight_written(key, value, key_t, value_t, steps, rows, R, V, MMA)
    q = hold(column_steps(query, query_t, steps, rows, R, RIGHT, EVEN))
    f = step_numbers(forget, forget_t, steps, MMA, EVEN)
    h = gl.load(state + cells, mask=inside, other=0.0)
    rounded = h.to(gl.bfloat16)
    for t in range(first, last, 8):
        if RESET:
            kept = step_numbers(keep, 1, last - t, MMA, EVEN)
            h = h * number_at(kept, 0, R, MMA)
            rounded = h.to(gl.bfloat16)
        if SAVE:  # noqa: SIM102 - the outer one is decided when compiling
            if t % C == 0:
                if EVEN:
                    gl.store(borders + cells, rounded)
                else:
                    gl.store(borders + cells, rounded, mask=inside)
                borders += N * K * V
        # the next block's loads are issued before this block's work
        on = 8
        if EVEN:  # nothing is masked, so the last block loads itself again
            on = gl.where(t + 8 < last, 8, 0)
        if FOUR and AHEAD == 4:  # the registers of four that are done with take them
            late = four_written(key, value, key_t, value_t, 4, last - t, rows, R, V, EVEN, MMA)
        key += on * key_t
        value += on * value_t
        query += on * query_t
        forget += on * forget_t
        keep += 8
        steps = last - t - 8
        if LEVEL > 0:
            fetch_rows(value + 16 * value_t, value_t, -16, steps - 17, LEVEL, MMA)
            fetch_rows(forget + 16 * forget_t, forget_t, -16, steps - 17, LEVEL, MMA)
        if not FOUR:
            following = eight_written(key, value, key_t, value_t, steps, rows, R, V, MMA)
        elif AHEAD == 8:
            following = four_written(key, value, key_t, value_t, 0, steps, rows, R, V, EVEN, MMA)
            latest = four_written(key, value, key_t, value_t, 4, steps, rows, R, V, EVEN, MMA)
        next_q = hold(column_steps(query, query_t, steps, rows, R, RIGHT, EVEN))
        next_f = step_numbers(forget, forget_t, steps, MMA, EVEN)
        y = gl.zeros([V, 8], gl.float32, layout=MMA)
        for j in gl.static_range(8):
            if RESET and j > 0:
                h = h * number_at(kept, j, R, MMA)
                rounded = h.to(gl.bfloat16)
            operand = gl.convert_layout(rounded, LEFT)
            if FOUR and AHEAD == 4 and j == 4:
                early = four_written(key, value, key_t, value_t, 0, steps, rows, R, V, EVEN, MMA)
            if FOUR:
                k, v = held_pair(early if j < 4 else late)
                x = start(h, k, v, j % 4, diagonal, V, WEIGHT, CHAINED, MMA)
            else:
                k, v = early
                written = mma_v2(k, pick(v, step_row - j), gl.zeros_like(h))
                x = add_written(h, written, diagonal, WEIGHT)
            z = nonlinearity(mix(x, operand, rest, WEIGHT), PHI)
            h = z + number_at(f, j, R, MMA) * (h - z)
            rounded = h.to(gl.bfloat16)
            if LATE:
                slots[j].store(rounded)
            else:
                y = mma_v2(transposed_left(rounded, R, V, LEFT), pick(held(q), step_column - j), y)
        if LATE:
            odd = gl.zeros([V, 8], gl.float32, layout=MMA)  # two sums: shorter chains of products
            for j in gl.static_range(0, 8, 2):
                y = mma_v2(slots[j].permute((1, 0)).load(LEFT), pick(held(q), step_column - j), y)
                across = slots[j + 1].permute((1, 0)).load(LEFT)
                odd = mma_v2(across, pick(held(q), step_column - (j + 1)), odd)
            y += odd
        y = y.to(output.dtype.element_ty)
        if EVEN:
            gl.store(output + y_step * (N * V) + y_row, y)
        else:
            gl.store(output + y_step * (N * V) + y_row, y, mask=(y_step < last - t) & (y_row < V))
        output += 8 * N * V
        if not FOUR or AHEAD == 8:
            early = following
        if FOUR and AHEAD == 8:
            late = latest
        q = next_q
        f = next_f
    gl.store(state + cells, h, mask=inside)
