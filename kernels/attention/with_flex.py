"""torch's FlexAttention: a kernel compiled for a mask, which skips the blocks that it hides."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex

Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def attention_flex(
    query: Tensor, key: Tensor, value: Tensor, *, first: Tensor | None, window: int
) -> Tensor:
    """As `kernels.attention.causal_attention`, of as many keys as queries.

    Compiled on a GPU; elsewhere torch's eager form, which has all scores in memory: for tests.
    """
    attend, block_mask = _functions(query.is_cuda)
    (B, T), N = query.shape[:2], query.shape[2]
    mask = block_mask(
        causal_mask(first, window), None if first is None else B, None, T, T, query.device
    )
    y = attend(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
        block_mask=mask, enable_gqa=key.shape[2] != N,
    )  # fmt: skip
    return y.transpose(1, 2)


def causal_mask(first: Tensor | None, window: int) -> Mask:
    """Whether query `q` of sequence `b` sees key `k`, as FlexAttention asks."""

    def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return q >= k

    def in_window(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return q - k < window

    def in_document(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        assert first is not None
        return k >= first[b, q]

    masks: list[Mask] = [causal]
    masks += [in_window] if window else []
    masks += [in_document] if first is not None else []
    return flex.and_masks(*masks)


@cache
def _functions(compiled: bool) -> tuple[Any, Any]:
    """What attends, and what makes the mask of its blocks."""
    if not compiled:
        return flex.flex_attention, flex.create_block_mask
    return (
        torch.compile(flex.flex_attention, dynamic=False),
        torch.compile(flex.create_block_mask, dynamic=False),
    )
