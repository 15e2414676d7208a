"""Loss and gradient of each row of logits in one launch: a row is read twice, written once."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
WARPS = 8


def softmax_rows(logits: Tensor, targets: Tensor, losses: Tensor) -> None:
    """Replace logits (R, U) by softmax(logits) less one at the target; write losses (R,) in nats.

    A negative target counts for nothing: its loss and its row of the gradient are 0.
    """
    rows, vocabulary = logits.shape
    options: dict[str, Any] = {"BLOCK": BLOCK, "num_warps": WARPS}
    _rows[(rows,)](logits, targets, losses, vocabulary, logits.stride(0), **options)


@triton.jit
def _rows(logits, targets, losses, vocabulary, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row)
    counted = target >= 0
    at_target = tl.load(logits + tl.where(counted, target, 0)).to(tl.float32)
    columns = tl.arange(0, BLOCK)
    largest = -float("inf")
    total = 0.0
    for start in range(0, vocabulary, BLOCK):
        mask = start + columns < vocabulary
        x = tl.load(logits + start + columns, mask=mask, other=-float("inf")).to(tl.float32)
        after = tl.maximum(largest, tl.max(x, 0))
        total = total * tl.exp(largest - after) + tl.sum(tl.exp(x - after), 0)
        largest = after
    total = largest + tl.log(total)
    tl.store(losses + row, tl.where(counted, total - at_target, 0.0))
    for start in range(0, vocabulary, BLOCK):
        mask = start + columns < vocabulary
        x = tl.load(logits + start + columns, mask=mask, other=-float("inf")).to(tl.float32)
        y = tl.exp(x - total) - tl.where(start + columns == target, 1.0, 0.0)
        y = tl.where(counted, y, 0.0)
        tl.store(logits + start + columns, y.to(logits.dtype.element_ty), mask=mask)
