"""Sums partial outputs and gradients in a fixed order: row tiles' shares, and heads that share."""

# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportAssignmentType=false
# (the compiler gives integer arguments their tensor methods)
import triton
import triton.language as tl
from torch import Tensor

# a program's tile: cells and, of each, shares read at once; few shares make room for more cells
BLOCK, MEMBERS = 64, 64
CELLS = 1024


@triton.jit
def _sum_one(
    parts, out, out_row, block, first, S, T, heads, group, part_b, part_s, part_n,
    few, few_stride, many, many_stride, passed_by, factor,
    X: tl.constexpr, BLOCK: tl.constexpr, MEMBERS: tl.constexpr, PASSED: tl.constexpr,
):  # fmt: skip
    """out[b, first + s, g, x] = the sum of `few` times `many` parts, `few_stride` and
    `many_stride` apart, from parts[b, s, g group, x] on, MEMBERS of the many at a time.

    Rows of `out` are out_row apart. PASSED adds factor[g, x] passed_by[b, first + s, g, x].
    """
    b = tl.program_id(1).to(tl.int64)
    i = block * BLOCK + tl.arange(0, BLOCK)
    inside = i < S * heads * X
    x = i % X
    g = i // X % heads
    s = i // X // heads
    cell = b * part_b + s.to(tl.int64) * part_s + g.to(tl.int64) * group * part_n + x
    if X % 4 == 0:  # the compiler cannot see that four neighbours stay neighbours
        cell = tl.max_contiguous(tl.multiple_of(cell, 4), 4)
    member = tl.arange(0, MEMBERS)
    total = tl.zeros((MEMBERS, BLOCK), tl.float32)
    for _ in range(few):
        for start in range(0, many, MEMBERS):
            at = (start + member).to(tl.int64) * many_stride
            mask = (start + member < many)[:, None] & inside[None, :]
            share = tl.load(parts + at[:, None] + cell[None, :], mask=mask, other=0.0)
            total += share.to(tl.float32)
        parts += few_stride
    summed = tl.sum(total, axis=0)
    row = b * T + first
    if PASSED:  # a segment's offsets fit 32 bits, as PARTIAL_BYTES bounds it
        passed_by += row * heads * X
        more = tl.load(passed_by + i, mask=inside, other=0.0).to(tl.float32)
        summed += more * tl.load(factor + i % (heads * X), mask=inside, other=0.0).to(tl.float32)
    to = s * out_row + i % (heads * X)
    if X % 4 == 0:
        to = tl.max_contiguous(tl.multiple_of(to, 4), 4)
    tl.store(out + row * out_row + to, summed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _sum_tiles(
    parts, out, first, S, T, N, tiles,
    V: tl.constexpr, BLOCK: tl.constexpr, MEMBERS: tl.constexpr,
):  # fmt: skip
    B = tl.num_programs(1).to(tl.int64)
    _sum_one(
        parts, out, N * V, tl.program_id(0), first, S, T, N, 1, S * N * V, N * V, V,
        1, 0, tiles, B * S * N * V, out, out, V, BLOCK, MEMBERS, False,
    )  # fmt: skip


@triton.jit
def _sum_gradients(
    query, key, value, forget, d_query, d_key, d_value, d_forget, grad_output, residual,
    query_t, key_t, value_t, forget_t, first, S, T, N, tiles,
    query_heads, key_heads, value_heads, forget_heads,
    K: tl.constexpr, V: tl.constexpr, FEW: tl.constexpr, CELLS: tl.constexpr,
    BLOCK: tl.constexpr, MEMBERS: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    """One launch for the four: each takes the blocks that it needs, in this order."""
    B = tl.num_programs(1).to(tl.int64)
    block = tl.program_id(0)
    q_blocks = tl.cdiv(S * query_heads * K, BLOCK)
    k_blocks = tl.cdiv(S * key_heads * K, BLOCK)
    v_blocks = tl.cdiv(S * value_heads * V, CELLS)
    rows = S * K
    one: tl.constexpr = 1
    if block < q_blocks:
        _sum_one(
            query, d_query, query_t, block, first, S, T, query_heads, N // query_heads,
            N * rows, K, rows, 1, 0, N // query_heads, rows, query, query, K, BLOCK, MEMBERS, False,
        )  # fmt: skip
    elif block < q_blocks + k_blocks:
        _sum_one(
            key, d_key, key_t, block - q_blocks, first, S, T, key_heads, N // key_heads,
            N * rows, K, rows, 1, 0, N // key_heads, rows, key, key, K, BLOCK, MEMBERS, False,
        )  # fmt: skip
    elif block < q_blocks + k_blocks + v_blocks:
        _sum_one(
            value, d_value, value_t, block - q_blocks - k_blocks, first, S, T, value_heads,
            N // value_heads, S * N * V, N * V, V, N // value_heads, V, tiles, B * S * N * V,
            grad_output, residual, V, CELLS, FEW, RESIDUAL,
        )  # fmt: skip
    else:
        _sum_one(
            forget, d_forget, forget_t, block - q_blocks - k_blocks - v_blocks, first, S, T,
            forget_heads, N // forget_heads, S * N, N, 1,
            N // forget_heads, 1, tiles, B * S * N, forget, forget, one, CELLS, FEW, False,
        )  # fmt: skip


def sum_tiles(parts: Tensor, out: Tensor, first: int) -> None:
    """out[:, first : first + S] = the sum over the row tiles of parts (tiles, B, S, N, V)."""
    tiles, B, S, N, V = parts.shape
    few = triton.next_power_of_2(tiles)
    block = max(CELLS // 4, 2 * CELLS // few)
    _sum_tiles[(triton.cdiv(S * N * V, block), B)](
        parts, out, first, S, out.shape[1], N, tiles, V=V, BLOCK=block, MEMBERS=few, num_warps=4
    )


def sum_gradients(
    parts: list[Tensor],
    outs: list[Tensor],
    first: int,
    grad_output: Tensor | None = None,
    residual: Tensor | None = None,
) -> None:
    """Sums a segment's shares into the gradients of query, key, value and forget.

    Args:
        parts: d_query and d_key (B, N, S, K), d_value (tiles, B, S, N, V), d_forget (tiles, B, S,
            N): where heads share a tensor, head n counts to group n // (N / heads).
        outs: (B, T, heads, K or V), and (B, T, heads) for the forget gate; dense but for the steps
            of T, which may be rows of a wider tensor, a multiple of 4 wide.
        grad_output, residual: dy (B, T, N, V) and D (N, V): the value's gradient gets D dy as well;
            then it has N heads.
    """
    tiles, B, S, N, V = parts[2].shape
    K = parts[0].shape[3]
    heads = [out.shape[2] for out in outs]
    blocks = sum(triton.cdiv(S * h * K, BLOCK) for h in heads[:2])
    blocks += triton.cdiv(S * heads[2] * V, CELLS) + triton.cdiv(S * heads[3], CELLS)
    passed = parts[2] if residual is None else residual
    _sum_gradients[(blocks, B)](
        *parts, *outs, passed if grad_output is None else grad_output, passed,
        *(out.stride(1) for out in outs), first, S, outs[0].shape[1], N, tiles, *heads, K=K, V=V,
        FEW=min(MEMBERS, triton.next_power_of_2(tiles)), CELLS=CELLS, BLOCK=BLOCK,
        MEMBERS=MEMBERS, RESIDUAL=residual is not None, num_warps=4,
    )  # fmt: skip
