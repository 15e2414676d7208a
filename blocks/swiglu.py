"""SwiGLU, the channel mixer of every layer (arXiv 2002.05202), and the lack of one."""

import math

import torch.nn.functional as F
from torch import Tensor, nn

from blocks.base import INITIAL_STD, ChannelCost
from blocks.initialisation import Normal, Parameter
from blocks.linear import Linear


class SwiGLU(nn.Module):
    """y = (SiLU(x Gᵀ) ⊙ x Uᵀ) Dᵀ with G, U (F, D) in one matrix, no biases."""

    initial_std: float = INITIAL_STD

    def __init__(self, width: int, hidden: int, *, depth: int) -> None:
        """Build for model width `width`, `hidden` channels, in a model of `depth` layers.

        Raises:
            ValueError: `hidden` is not positive.
        """
        super().__init__()
        if hidden <= 0:
            raise ValueError(f"the MLP's width is {hidden}; expected a number above 0")
        self.width, self.hidden, self.depth = width, hidden, depth
        self.input = Linear(width, 2 * hidden)
        self.output = Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        gate, up = self.input(x).chunk(2, dim=-1)
        return self.output(F.silu(gate) * up)

    def declared_parameters(self) -> dict[str, Parameter]:
        """How each parameter starts and whether it is decayed."""
        std = self.initial_std
        return {
            "input.weight": Parameter(Normal(std), decay=True),
            "output.weight": Parameter(Normal(std / math.sqrt(2 * self.depth)), decay=True),
        }

    def cost(self) -> ChannelCost:
        """Counts; every parameter is used for every token, each in one multiply-add."""
        parameters = 3 * self.width * self.hidden
        return ChannelCost(
            parameters=parameters,
            active_parameters=parameters,
            forward_flops_per_token=2 * parameters,
        )


class NoChannelMixer(nn.Module):
    """Stands where a layer is its sequence mixer alone, as in Mamba-2's published models."""

    def declared_parameters(self) -> dict[str, Parameter]:
        """There are none."""
        return {}

    def cost(self) -> ChannelCost:
        """Nothing."""
        return ChannelCost(parameters=0, active_parameters=0, forward_flops_per_token=0.0)
