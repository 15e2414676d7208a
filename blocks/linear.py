"""A linear map whose weight is left for the model to fill."""

import torch.nn.functional as F
from torch import Tensor, nn

ALIGNED = 8  # rows: results are then a multiple of 16 bytes wide, which tensor cores want


class Linear(nn.Linear):
    """y = x Wᵀ, W (outputs, inputs), no bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def reset_parameters(self) -> None:
        """Nothing: the start is declared by the block and drawn by the model."""


def narrow_projection(x: Tensor, weight: Tensor) -> Tensor:
    """x Wᵀ for a W of few outputs: on a GPU they are rounded up to what tensor cores take."""
    short = -len(weight) % ALIGNED if x.is_cuda else 0
    y = F.linear(x, F.pad(weight, (0, 0, 0, short)) if short else weight)
    return y[..., : len(weight)]


def linear_flops(inputs: int, outputs: int) -> int:
    """Of one token: a multiply-add is two."""
    return 2 * inputs * outputs
