"""The fast M²RNN backward where few warps run: a chunk is swept while the one before is rebuilt.

The two chains do not wait for each other, so one fills the other's latency; and every load is
issued 8 steps before it is used.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportAssignmentType=false, reportOptionalMemberAccess=false
# (Gluon's own types are those of its compiler)
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.m2rnn.gluon_loads import column_steps
from kernels.m2rnn.gluon_operands import held, held_pair, hold, hold_pair
from kernels.m2rnn.gluon_steps import (
    fetch_steps,
    gates,
    inputs_at,
    outer_operands,
    rebuild_step,
    store_columns,
    store_gates,
    sweep_step,
)


@gluon.jit
def eight_operands(
    a, b, a_stride, b_stride, steps, rows,
    R: gl.constexpr, V: gl.constexpr, EVEN: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """`outer_operands` of 8 steps, four and four, as a loop carries them."""
    return (
        hold_pair(outer_operands(a, b, a_stride, b_stride, 0, steps, rows, R, V, EVEN, MMA)),
        hold_pair(outer_operands(a, b, a_stride, b_stride, 4, steps, rows, R, V, EVEN, MMA)),
    )


@gluon.jit
def load_rebuilt(
    inputs, strides, t, last, rows,
    R: gl.constexpr, V: gl.constexpr, RESET: gl.constexpr, EVEN: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """What 8 steps from t on need to be run again: k and v, gates, dy as columns."""
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    at, steps = inputs_at(inputs, strides, t), last - t
    return (
        eight_operands(at[1], at[2], strides[1], strides[2], steps, rows, R, V, EVEN, MMA),
        gates(at, strides, steps, RESET, EVEN, MMA),
        hold(column_steps(at[5], strides[4], steps, V, V, RIGHT, EVEN)),
    )


@gluon.jit
def load_swept(
    inputs, strides, t, last, rows,
    R: gl.constexpr, V: gl.constexpr, RESET: gl.constexpr, EVEN: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """What the sweep of 8 steps from t on needs: k and v, q and dy, gates, v and k as columns."""
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    at, steps = inputs_at(inputs, strides, t), last - t
    return (
        eight_operands(at[1], at[2], strides[1], strides[2], steps, rows, R, V, EVEN, MMA),
        eight_operands(at[0], at[5], strides[0], strides[4], steps, rows, R, V, EVEN, MMA),
        gates(at, strides, steps, RESET, EVEN, MMA),
        hold(column_steps(at[2], strides[2], steps, V, V, RIGHT, EVEN)),
        hold(column_steps(at[1], strides[1], steps, rows, R, RIGHT, EVEN)),
    )


@gluon.jit
def both_steps(
    c, h, dq, dk, dv, dw, states, mine, other, swept, rebuilt, mixing, transposed,
    j: gl.constexpr, R: gl.constexpr, V: gl.constexpr, WEIGHT: gl.constexpr, PHI: gl.constexpr,
    RESET: gl.constexpr, CLIP: gl.constexpr, CHAINED: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """Step j of 8 backwards, and step 7 - j of the chunk before again."""
    four: gl.constexpr = j // 4
    inner: gl.constexpr = j % 4
    k, v = held_pair(swept[0][four])
    q, dy = held_pair(swept[1][four])
    c, dk, dv, dw, gate_sum = sweep_step(
        c, dk, dv, dw, states[inner].index(mine + four), k, v, q, dy, swept[2],
        held(swept[3]), held(swept[4]), mixing, transposed, inner, j,
        R, V, WEIGHT, PHI, RESET, CLIP, CHAINED, MMA,
    )  # fmt: skip
    k, v = held_pair(rebuilt[0][1 - four])
    h, dq = rebuild_step(
        h, dq, states[3 - inner].index(other + 1 - four), k, v, rebuilt[1],
        held(rebuilt[2]), mixing, 3 - inner, 7 - j, R, V, WEIGHT, PHI, RESET, CHAINED, MMA,
    )  # fmt: skip
    return c, h, dq, dk, dv, dw, gate_sum


@gluon.jit
def sweep_beside(
    c, h, dw, states, mine, other, gate_sums, swept, rebuilt, mixing, transposed, outputs,
    t, rebuilt_t, first, last, rows, N,
    K: gl.constexpr, R: gl.constexpr, V: gl.constexpr, WEIGHT: gl.constexpr, PHI: gl.constexpr,
    RESET: gl.constexpr, CLIP: gl.constexpr, EVEN: gl.constexpr, CHAINED: gl.constexpr,
    MMA: gl.constexpr,
):  # fmt: skip
    """Sweeps 8 steps from t on, whose states are in the slots from `mine`, and reruns those from
    rebuilt_t on into the slots from `other`."""
    dq = gl.zeros([R, 8], gl.float32, layout=MMA)
    dk = gl.zeros([R, 8], gl.float32, layout=MMA)
    dv = gl.zeros([V, 8], gl.float32, layout=MMA)
    for back in gl.static_range(2):
        c, h, dq, dk, dv, dw, sum3 = both_steps(
            c, h, dq, dk, dv, dw, states, mine, other, swept, rebuilt, mixing, transposed,
            7 - 4 * back, R, V, WEIGHT, PHI, RESET, CLIP, CHAINED, MMA,
        )  # fmt: skip
        c, h, dq, dk, dv, dw, sum2 = both_steps(
            c, h, dq, dk, dv, dw, states, mine, other, swept, rebuilt, mixing, transposed,
            7 - 1 - 4 * back, R, V, WEIGHT, PHI, RESET, CLIP, CHAINED, MMA,
        )  # fmt: skip
        c, h, dq, dk, dv, dw, sum1 = both_steps(
            c, h, dq, dk, dv, dw, states, mine, other, swept, rebuilt, mixing, transposed,
            7 - 2 - 4 * back, R, V, WEIGHT, PHI, RESET, CLIP, CHAINED, MMA,
        )  # fmt: skip
        c, h, dq, dk, dv, dw, sum0 = both_steps(
            c, h, dq, dk, dv, dw, states, mine, other, swept, rebuilt, mixing, transposed,
            7 - 3 - 4 * back, R, V, WEIGHT, PHI, RESET, CLIP, CHAINED, MMA,
        )  # fmt: skip
        sums = gl.permute(gl.join(gl.join(sum0, sum1), gl.join(sum2, sum3)), (0, 1, 3, 2))
        gate_sums.index(1 - back).store(gl.reshape(sums, [32, 4]))
    steps = last - t
    if rebuilt_t >= first:
        store_columns(outputs[0], K, dq, rebuilt_t - first, last - rebuilt_t, rows, R, EVEN, MMA)
    store_columns(outputs[1], K, dk, t - first, steps, rows, R, EVEN, MMA)
    store_columns(outputs[2], N * V, dv, t - first, steps, V, V, EVEN, MMA)
    store_gates(outputs[3], gate_sums, t - first, steps, N)
    return c, h, dw


@gluon.jit
def sweep_chunks_beside(
    c, h, dw, states, gate_sums, inputs, strides, outputs, border, border_stride, mixing,
    transposed, begin, first, last, cells, inside, rows, N,
    K: gl.constexpr, R: gl.constexpr, V: gl.constexpr, C: gl.constexpr, WEIGHT: gl.constexpr,
    PHI: gl.constexpr, RESET: gl.constexpr, CLIP: gl.constexpr, EVEN: gl.constexpr,
    CHAINED: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """Sweeps the chunks from `begin` down to `first`, the last one's states being in the first
    C / 4 slots; `border` points to the state before that chunk."""
    border -= border_stride
    h = gl.load(border + cells, mask=inside & (begin - C >= first), other=0.0).to(gl.float32)
    t = begin + C - 8
    rebuilt_t = begin - C
    swept = load_swept(inputs, strides, t, last, rows, R, V, RESET, EVEN, MMA)
    rebuilt = load_rebuilt(
        inputs, strides, gl.maximum(rebuilt_t, first), last, rows, R, V, RESET, EVEN, MMA
    )
    mine = 0
    for start in range(begin, first - 1, -C):
        border -= border_stride
        early = gl.load(border + cells, mask=inside & (start - 2 * C >= first), other=0.0)
        for half in range(C // 8):
            next_t = t - 8
            following = gl.where(half + 1 < C // 8, rebuilt_t + 8, start - 2 * C)
            next_swept = load_swept(
                inputs, strides, gl.maximum(next_t, first), last, rows, R, V, RESET, EVEN, MMA
            )
            fetch_steps(inputs, strides, following + 8, first, last - 1, MMA)
            next_rebuilt = load_rebuilt(
                inputs, strides, gl.maximum(following, first), last, rows,
                R, V, RESET, EVEN, MMA,
            )  # fmt: skip
            c, h, dw = sweep_beside(
                c, h, dw, states, mine + (C // 8 - 1 - half) * 2, C // 4 - mine + half * 2,
                gate_sums, swept, rebuilt, mixing, transposed, outputs, t, rebuilt_t, first, last,
                rows, N, K, R, V, WEIGHT, PHI, RESET, CLIP, EVEN, CHAINED, MMA,
            )  # fmt: skip
            swept = next_swept
            rebuilt = next_rebuilt
            t = next_t
            rebuilt_t = following
        h = early.to(gl.float32)
        mine = C // 4 - mine
    return c, dw
