"""A linear map whose weight is left for the model to fill."""

from torch import nn


class Linear(nn.Linear):
    """y = x Wᵀ, W (outputs, inputs), no bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def reset_parameters(self) -> None:
        """Nothing: the start is declared by the block and drawn by the model."""


def linear_flops(inputs: int, outputs: int) -> int:
    """Of one token: a multiply-add is two."""
    return 2 * inputs * outputs
