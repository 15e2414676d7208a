"""FLOPs counted while they run, to hold a block's own counts against."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

PRODUCTS = {aten.mm, aten.bmm, aten.addmm, aten.addmm_, aten.baddbmm, aten.baddbmm_, aten.mv}
ARITHMETIC = {  # operations an element
    aten.add: 1, aten.add_: 1, aten.sub: 1, aten.sub_: 1, aten.mul: 1, aten.mul_: 1, aten.div: 1,
    aten.div_: 1, aten.addcmul: 2, aten.addcmul_: 2, aten.lerp: 3,
}  # fmt: skip
FUNCTIONS = {aten.sigmoid, aten.tanh, aten.silu, aten.exp}
ATTENTION = "scaled_dot_product"


@dataclass(kw_only=True)
class Measured:
    """What ran: `products` of matrices (a multiply-add is two), pointwise `arithmetic`, and values
    of `functions` such as tanh, which GPUs compute in units of their own."""

    products: int = 0
    arithmetic: int = 0
    functions: int = 0

    @property
    def pointwise(self) -> int:
        return self.arithmetic + self.functions


class FlopMeter(TorchDispatchMode):
    """Counts the operations that reach the dispatcher, those of custom backends included."""

    def __init__(self) -> None:
        super().__init__()
        self.measured = Measured()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        if packet in PRODUCTS:
            left, right = [x for x in args if isinstance(x, Tensor)][-2:]
            columns = right.shape[-1] if right.ndim > 1 else 1
            self.measured.products += 2 * left.numel() * columns
            if packet in (aten.baddbmm, aten.baddbmm_):  # adding onto the first
                self.measured.arithmetic += args[0].numel()
        elif packet is aten.linalg_solve_triangular:
            self.measured.products += args[0].shape[-1] * args[1].numel()
        elif packet in ARITHMETIC:
            self.measured.arithmetic += ARITHMETIC[packet] * out.numel()
        elif packet in FUNCTIONS:
            self.measured.functions += out.numel()
        elif ATTENTION in str(packet) and "backward" not in str(packet):
            self.measured.products += _attention(args, kwargs or {})
        return out


def _attention(args: tuple, kwargs: dict) -> int:
    """2 (K + V) for each pair of a query and a key that it sees."""
    query, key, value = args[:3]
    queries, keys = query.shape[-2], key.shape[-2]
    mask = kwargs.get("attn_mask")
    if mask is None:
        causal = True in [x for x in args[3:] if isinstance(x, bool)] or kwargs.get("is_causal")
        pairs = queries * (queries + 1) // 2 if causal else queries * keys
        pairs *= math.prod(query.shape[:2])
    else:
        seen = mask if mask.dtype == torch.bool else mask == 0
        pairs = int(seen.expand(*query.shape[:2], queries, keys).sum())
    return 2 * (query.shape[-1] + value.shape[-1]) * pairs


def measure_flops(function: Any, *args: Any) -> Measured:
    """Run `function(*args)` and count."""
    with torch.no_grad(), FlopMeter() as meter:
        function(*args)
    return meter.measured
