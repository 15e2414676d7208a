"""The M²RNN scan over time in plain Triton: every option, any head counts, K to 256, V to 64.

One program owns BK rows of one head's state for the whole sequence. Rows are independent (W mixes
the V columns only), so row tiles share nothing but the readout, which comes out as one partial for
each tile. The delta write couples rows: there a single tile holds them all.
"""

# pyright: reportOperatorIssue=false
# (`%` on compile-time values)
import triton
import triton.language as tl

from kernels.m2rnn.triton_math import as_operand, load_weight, mix, nonlinearity, sigmoid


@triton.jit
def step(
    h, k, v, f, diagonal, rest, u,
    WEIGHT: tl.constexpr, PHI: tl.constexpr, STATE_GATE: tl.constexpr, DELTA: tl.constexpr,
    PRECISE: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """One step from H_{t-1} (BK, BV): the pre-activation, Z, the gate (BK, 1), what was written."""
    written = v
    if DELTA:
        written = v - tl.sum(k[:, None] * h, axis=0)  # (BV)
    x = mix(h, diagonal, rest, k[:, None] * written[None, :], WEIGHT, OPERAND)
    z = nonlinearity(x, PHI, PRECISE)
    gate = tl.zeros_like(k) + f
    if STATE_GATE:
        gate = sigmoid(gate + tl.sum(h * u[None, :], axis=1))
    return x, z, gate[:, None], written


@triton.jit
def scan_forward(
    query, key, value, forget, weight, state, gate_weight, keep,
    output, last_state, borders,
    T, N, query_group, key_group, value_group, forget_group, weight_group,
    query_b, query_t, query_n, key_b, key_t, key_n,
    value_b, value_t, value_n, forget_b, forget_t, forget_n,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    WEIGHT: tl.constexpr, PHI: tl.constexpr, STATE_GATE: tl.constexpr, DELTA: tl.constexpr,
    RESET: tl.constexpr, SAVE: tl.constexpr, PRECISE: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """Writes y, one partial for each row tile (tiles, B, T, N, V), the last state (B, N, K, V) and,
    with SAVE, the state before every C-th step (B, ceil(T / C), N, K, V), float32."""
    n = tl.program_id(0).to(tl.int64)
    b = tl.program_id(1).to(tl.int64)
    tile = tl.program_id(2).to(tl.int64)
    B = tl.num_programs(1).to(tl.int64)
    rows = tile * BK + tl.arange(0, BK)
    columns = tl.arange(0, BV)
    in_k = rows < K
    in_v = columns < V
    cells = rows[:, None] * V + columns[None, :]
    inside = in_k[:, None] & in_v[None, :]

    square = V * V if WEIGHT == "dense" else V
    diagonal, rest = load_weight(weight + n // weight_group * square, V, BV, WEIGHT)
    rest = as_operand(rest, OPERAND)
    u = tl.load(gate_weight + n * V + columns, mask=in_v & STATE_GATE, other=0.0).to(tl.float32)

    query += b * query_b + n // query_group * query_n
    key += b * key_b + n // key_group * key_n
    value += b * value_b + n // value_group * value_n
    forget += b * forget_b + n // forget_group * forget_n
    keep += b * T
    output += ((tile * B + b) * T * N + n) * V
    borders += (b * tl.cdiv(T, C) * N + n) * K * V
    h = tl.load(state + (b * N + n) * K * V + cells, mask=inside, other=0.0)  # (BK, BV)
    for t in range(T):
        if RESET:
            h = h * tl.load(keep).to(tl.float32)
            keep += 1
        if SAVE:  # noqa: SIM102 - the outer one is decided when compiling
            if t % C == 0:
                tl.store(borders + cells, h, mask=inside)
                borders += N * K * V
        q = tl.load(query + rows, mask=in_k, other=0.0).to(tl.float32)
        k = tl.load(key + rows, mask=in_k, other=0.0).to(tl.float32)
        v = tl.load(value + columns, mask=in_v, other=0.0).to(tl.float32)
        f = tl.load(forget).to(tl.float32)
        _, z, gate, _ = step(
            h, k, v, f, diagonal, rest, u, WEIGHT, PHI, STATE_GATE, DELTA, PRECISE, OPERAND
        )
        h = z + gate * (h - z)
        y = tl.sum(q[:, None] * h, axis=0)  # (BV)
        tl.store(output + columns, y.to(output.dtype.element_ty), mask=in_v)
        query += query_t
        key += key_t
        value += value_t
        forget += forget_t
        output += N * V
    tl.store(last_state + (b * N + n) * K * V + cells, h, mask=inside)
