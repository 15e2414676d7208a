"""One step of the M²RNN in one launch, for decoding: a program owns a head and walks its rows."""

import triton
import triton.language as tl

from kernels.m2rnn.triton_forward import step
from kernels.m2rnn.triton_math import as_operand, load_weight


@triton.jit
def scan_step(
    query, key, value, forget, weight, state, gate_weight, keep, output, last_state,
    N, query_group, key_group, value_group, forget_group, weight_group,
    query_b, query_n, key_b, key_n, value_b, value_n, forget_b, forget_n,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    WEIGHT: tl.constexpr, PHI: tl.constexpr, STATE_GATE: tl.constexpr, DELTA: tl.constexpr,
    RESET: tl.constexpr, PRECISE: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """Writes y (B, N, V) and the new state (B, N, K, V), float32."""
    n = tl.program_id(0).to(tl.int64)
    b = tl.program_id(1).to(tl.int64)
    columns = tl.arange(0, BV)
    in_v = columns < V
    square = V * V if WEIGHT == "dense" else V
    diagonal, rest = load_weight(weight + n // weight_group * square, V, BV, WEIGHT)
    rest = as_operand(rest, OPERAND)
    u = tl.load(gate_weight + n * V + columns, mask=in_v & STATE_GATE, other=0.0).to(tl.float32)
    query += b * query_b + n // query_group * query_n
    key += b * key_b + n // key_group * key_n
    value += b * value_b + n // value_group * value_n
    v = tl.load(value + columns, mask=in_v, other=0.0).to(tl.float32)
    f = tl.load(forget + b * forget_b + n // forget_group * forget_n).to(tl.float32)
    y = tl.zeros((BV,), tl.float32)
    for start in range(0, K, BK):
        rows = start + tl.arange(0, BK)
        inside = (rows < K)[:, None] & in_v[None, :]
        cells = (b * N + n) * K * V + rows[:, None] * V + columns[None, :]
        h = tl.load(state + cells, mask=inside, other=0.0).to(tl.float32)  # (BK, BV)
        if RESET:
            h = h * tl.load(keep + b).to(tl.float32)
        q = tl.load(query + rows, mask=rows < K, other=0.0).to(tl.float32)
        k = tl.load(key + rows, mask=rows < K, other=0.0).to(tl.float32)
        _, z, gate, _ = step(
            h, k, v, f, diagonal, rest, u, WEIGHT, PHI, STATE_GATE, DELTA, PRECISE, OPERAND
        )
        h = z + gate * (h - z)
        y += tl.sum(q[:, None] * h, axis=0)
        tl.store(last_state + cells, h, mask=inside)
    tl.store(output + (b * N + n) * V + columns, y.to(output.dtype.element_ty), mask=in_v)
