"""MAD's decoder for compression (arXiv 2403.17844): all is read off the last position."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blocks.base import INITIAL_STD
from blocks.initialisation import Normal, Parameter
from blocks.linear import Linear


class Autoencoder(nn.Module):
    """y_t = D GELU(E (z + p_t)): z are the last position's features, p_t sines and cosines of t.

    The model is then no longer causal: it is for tasks that ask after the last token alone.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.input = Linear(width, width)
        self.output = Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        place = sinusoids(x.shape[1], self.width, x.device).to(x.dtype)
        return self.output(F.gelu(self.input(x[:, -1:] + place)))

    def declared_parameters(self) -> dict[str, Parameter]:
        """How each parameter starts and whether it is decayed."""
        matrix = Parameter(Normal(INITIAL_STD), decay=True)
        return {"input.weight": matrix, "output.weight": matrix}

    def flops_per_token(self) -> int:
        """A multiply-add as two."""
        return 4 * self.width * self.width


def sinusoids(length: int, width: int, device: torch.device) -> Tensor:
    """(T, D): sin and cos of t / 10000^(2 i / D) (arXiv 1706.03762)."""
    half = (width + 1) // 2
    rates = torch.exp(-math.log(10_000) * torch.arange(half, device=device) / half)
    angle = torch.arange(length, device=device)[:, None] * rates
    return torch.cat([angle.sin(), angle.cos()], dim=1)[:, :width]
