"""Sums partial gradients and outputs in a fixed order: row tiles' shares, and heads that share."""

# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
# (the compiler gives integer arguments their tensor methods)
import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _sum_parts(
    parts, out, S, heads, group, count, part_p, part_b, part_s, part_n, out_b,
    X: tl.constexpr, MEMBERS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < S * heads * X
    x = i % X
    g = i // X % heads
    s = i // X // heads
    parts += b * part_b
    cell = s.to(tl.int64) * part_s + g.to(tl.int64) * group * part_n + x
    total = tl.zeros((MEMBERS, BLOCK), tl.float32)
    for start in range(0, count * group, MEMBERS):
        member = start + tl.arange(0, MEMBERS)
        at = (member // group).to(tl.int64) * part_p + (member % group).to(tl.int64) * part_n
        mask = (member < count * group)[:, None] & inside[None, :]
        total += tl.load(parts + at[:, None] + cell[None, :], mask=mask, other=0.0)
    summed = tl.sum(total, axis=0)
    tl.store(out + b * out_b + i, summed.to(out.dtype.element_ty), mask=inside)


def sum_parts(parts: Tensor, out: Tensor, first: int) -> None:
    """out[:, first : first + S] = the sum of parts over its first dimension and head groups.

    Args:
        parts: (P, B, S, N, X), float32, any strides but a dense last dimension.
        out: (B, T, heads, X), contiguous; heads divides N and head n counts to n // (N / heads).
    """
    P, B, S, N, X = parts.shape
    heads = out.shape[2]
    members = min(16, triton.next_power_of_2(P * (N // heads)))
    block = 2048 // members
    with torch.cuda.device_of(parts):
        _sum_parts[(triton.cdiv(S * heads * X, block), B)](
            parts, out[:, first:], S, heads, N // heads, P, *parts.stride()[:4], out.stride(0),
            X=X, MEMBERS=members, BLOCK=block, num_warps=4,
        )  # fmt: skip
