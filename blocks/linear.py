"""A linear map whose weight is left for the model to fill."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ALIGNED = 8  # rows: results are then a multiple of 16 bytes wide, which tensor cores want


class Linear(nn.Linear):
    """y = x Wᵀ, W (outputs, inputs), no bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def reset_parameters(self) -> None:
        """Nothing: the start is declared by the block and drawn by the model."""


def project(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    """x Wᵀ for each W (outputs, inputs) by one product, which on a GPU is faster than several."""
    sizes = [len(weight) for weight in weights]
    short = -sum(sizes) % ALIGNED
    joined = F.pad(torch.cat(weights), (0, 0, 0, short)) if short else torch.cat(weights)
    return F.linear(x, joined).split([*sizes, short], dim=-1)[: len(sizes)]


def linear_flops(inputs: int, outputs: int) -> int:
    """Of one token: a multiply-add is two."""
    return 2 * inputs * outputs
