"""The backward pass of the M²RNN scan in plain Triton: every option of `triton_forward`.

Chunks of C steps are walked from the last to the first. Each is rebuilt from the state at its
border into a scratch (C tiles for each program, which stay in the L2 cache), then swept in reverse:

    R = clip(carry) + q dyᵀ     D = (1 - f) phi'(R)     carry <- f R + D Wᵀ
    dq = H_t dy    dk = D v    dv = Dᵀ k    df = <R, H_{t-1} - Z>    dW = sum H_{t-1}ᵀ D

A row tile's share of dv and df, and a head's share of dq and dk, come out as partials that the
caller sums in a fixed order: no atomics, so two passes are equal to the bit.
"""

# pyright: reportPossiblyUnboundVariable=false, reportOperatorIssue=false
# (compile-time branches)
import triton
import triton.language as tl

from kernels.m2rnn.triton_forward import step
from kernels.m2rnn.triton_math import (
    as_operand,
    clamp_one,
    load_weight,
    product,
    through_nonlinearity,
)


@triton.jit
def scan_backward(
    query, key, value, forget, weight, gate_weight, keep, grad_output, borders, scratch,
    carry, d_query, d_key, d_value, d_forget, d_weight, d_gate_weight,
    T, N, first, last, query_group, key_group, value_group, forget_group, weight_group,
    query_b, query_t, query_n, key_b, key_t, key_n,
    value_b, value_t, value_n, forget_b, forget_t, forget_n,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    WEIGHT: tl.constexpr, PHI: tl.constexpr, STATE_GATE: tl.constexpr, DELTA: tl.constexpr,
    RESET: tl.constexpr, CLIP: tl.constexpr, PRECISE: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """Sweeps the steps [first, last), first a multiple of C; S = last - first.

    Reads and rewrites `carry`, the gradient of the state after `last` (B, N, K, V), and adds to
    d_weight (tiles, B, N, V, V) or (tiles, B, N, V) and d_gate_weight (tiles, B, N, V), all
    float32. Writes d_query and d_key (B, N, S, K), d_value (tiles, B, S, N, V) and d_forget
    (tiles, B, S, N), float32.
    """
    n = tl.program_id(0).to(tl.int64)
    b = tl.program_id(1).to(tl.int64)
    tile = tl.program_id(2).to(tl.int64)
    B = tl.num_programs(1).to(tl.int64)
    S = last - first
    rows = tile * BK + tl.arange(0, BK)
    columns = tl.arange(0, BV)
    in_k = rows < K
    in_v = columns < V
    cells = rows[:, None] * V + columns[None, :]
    inside = in_k[:, None] & in_v[None, :]

    square = V * V if WEIGHT == "dense" else V
    diagonal, rest = load_weight(weight + n // weight_group * square, V, BV, WEIGHT)
    transposed = as_operand(tl.trans(rest), OPERAND)
    rest = as_operand(rest, OPERAND)
    u = tl.load(gate_weight + n * V + columns, mask=in_v & STATE_GATE, other=0.0).to(tl.float32)

    query += b * query_b + n // query_group * query_n
    key += b * key_b + n // key_group * key_n
    value += b * value_b + n // value_group * value_n
    forget += b * forget_b + n // forget_group * forget_n
    keep += b * T
    grad_output += (b * T * N + n) * V
    borders += (b * tl.cdiv(T, C) * N + n) * K * V
    slab = (tile * B + b) * N + n
    scratch += slab * C * BK * BV
    packed = tl.arange(0, BK)[:, None] * BV + columns[None, :]
    d_query += (b * N + n) * S * K
    d_key += (b * N + n) * S * K
    d_value += ((tile * B + b) * S * N + n) * V
    d_forget += (tile * B + b) * S * N + n
    carry += (b * N + n) * K * V + cells
    c = tl.load(carry, mask=inside, other=0.0)  # (BK, BV)
    dense_cells = columns[:, None] * V + columns[None, :]
    in_dense = in_v[:, None] & in_v[None, :]
    if WEIGHT == "dense":
        d_weight += slab * V * V + dense_cells
        dw = tl.load(d_weight, mask=in_dense, other=0.0)  # (BV, BV)
    elif WEIGHT == "diagonal":
        d_weight += slab * V + columns
        dw = tl.load(d_weight, mask=in_v, other=0.0)  # (BV)
    d_gate_weight += slab * V + columns
    du = tl.load(d_gate_weight, mask=in_v & STATE_GATE, other=0.0)  # (BV)

    for back in range(tl.cdiv(S, C)):
        chunk = tl.cdiv(last, C) - 1 - back
        start = (chunk * C).to(tl.int64)
        steps = tl.minimum(last - chunk * C, C)
        h = tl.load(borders + chunk.to(tl.int64) * N * K * V + cells, mask=inside, other=0.0)
        for i in range(steps):
            t = start + i
            if RESET:
                h = h * tl.load(keep + t).to(tl.float32)
            tl.store(scratch + i * BK * BV + packed, h.to(scratch.dtype.element_ty))
            k = tl.load(key + t * key_t + rows, mask=in_k, other=0.0).to(tl.float32)
            v = tl.load(value + t * value_t + columns, mask=in_v, other=0.0).to(tl.float32)
            f = tl.load(forget + t * forget_t).to(tl.float32)
            _, z, gate, _ = step(
                h, k, v, f, diagonal, rest, u, WEIGHT, PHI, STATE_GATE, DELTA, PRECISE, OPERAND
            )
            h = z + gate * (h - z)
        tl.debug_barrier()
        for j in range(steps):
            i = steps - 1 - j
            t = start + i
            stored = tl.load(scratch + i * BK * BV + packed)  # (BK, BV)
            previous = stored.to(tl.float32)
            q = tl.load(query + t * query_t + rows, mask=in_k, other=0.0).to(tl.float32)
            k = tl.load(key + t * key_t + rows, mask=in_k, other=0.0).to(tl.float32)
            v = tl.load(value + t * value_t + columns, mask=in_v, other=0.0).to(tl.float32)
            f = tl.load(forget + t * forget_t).to(tl.float32)
            dy = tl.load(grad_output + t * N * V + columns, mask=in_v, other=0.0).to(tl.float32)
            x, z, gate, written = step(
                previous,
                k,
                v,
                f,
                diagonal,
                rest,
                u,
                WEIGHT,
                PHI,
                STATE_GATE,
                DELTA,
                PRECISE,
                OPERAND,
            )
            if CLIP == "carry":
                c = clamp_one(c)
            r = c + q[:, None] * dy[None, :]
            if CLIP == "sum":
                r = clamp_one(r)
            e = previous - z
            d = through_nonlinearity((1 - gate) * r, x, z, PHI)
            dq = tl.sum((z + gate * e) * dy[None, :], axis=1)  # (BK)
            dk = tl.sum(d * written[None, :], axis=1)  # (BK)
            dv = tl.sum(d * k[:, None], axis=0)  # (BV)
            d_gate = tl.sum(r * e, axis=1)  # (BK)
            c = gate * r
            # D Wᵀ with the diagonal in float32: near W = I, c is a sum over all later steps
            if WEIGHT == "dense":
                rounded = as_operand(d, OPERAND)
                c = product(rounded, transposed, c + d * diagonal[None, :])
                dw = product(as_operand(tl.trans(stored), OPERAND), rounded, dw)
            elif WEIGHT == "diagonal":
                c += d * diagonal[None, :]
                dw += tl.sum(previous * d, axis=0)
            else:
                c += d
            if DELTA:
                c -= k[:, None] * tl.expand_dims(dv, 0)
                dk -= tl.sum(previous * tl.expand_dims(dv, 0), axis=1)
            if STATE_GATE:
                s = tl.sum(gate, axis=1)  # (BK), its only column
                d_gate = d_gate * s * (1 - s)
                c += d_gate[:, None] * u[None, :]
                du += tl.sum(previous * d_gate[:, None], axis=0)
            if RESET:
                c = c * tl.load(keep + t).to(tl.float32)
            at = t - first
            tl.store(d_query + at * K + rows, dq, mask=in_k)
            tl.store(d_key + at * K + rows, dk, mask=in_k)
            tl.store(d_value + at * N * V + columns, dv, mask=in_v)
            tl.store(d_forget + at * N, tl.sum(d_gate, axis=0))
        tl.debug_barrier()

    tl.store(carry, c, mask=inside)
    if WEIGHT == "dense":
        tl.store(d_weight, dw, mask=in_dense)
    elif WEIGHT == "diagonal":
        tl.store(d_weight, dw, mask=in_v)
    if STATE_GATE:
        tl.store(d_gate_weight, du, mask=in_v)
