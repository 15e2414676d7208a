"""The short causal convolution that many mixers put behind their input projection."""

import torch
from torch import Tensor, nn

from kernels.convolution import causal_convolution


class ShortConvolution(nn.Module):
    """SiLU of a depthwise causal convolution with `taps` taps over `channels` channels."""

    def __init__(self, channels: int, taps: int, *, bias: bool = False) -> None:
        super().__init__()
        self.channels, self.taps = channels, taps
        self.weight = nn.Parameter(torch.empty(channels, taps))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None

    def forward(
        self, x: Tensor, state: Tensor | None, reset: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """x (B, T, C) and the last inputs (B, taps - 1, C) -> the same."""
        return causal_convolution(x, self.weight, self.bias, state, reset=reset, silu=True)

    def in_parts(
        self, x: Tensor, state: Tensor | None, reset: Tensor | None, sizes: list[int]
    ) -> tuple[list[Tensor], Tensor]:
        """As `forward`, y split into `sizes` channels: on a GPU each has memory of its own.

        A scan's kernel wants its inputs apart, and a copy would be kept beside the whole y.
        """
        if not x.is_cuda or state is not None or reset is not None:
            y, last = self(x, state, reset)
            return list(y.split(sizes, dim=-1)), last
        biases = [None] * len(sizes) if self.bias is None else self.bias.split(sizes)
        parts = zip(x.split(sizes, dim=-1), self.weight.split(sizes), biases, strict=True)
        found = [causal_convolution(part, w, b, silu=True) for part, w, b in parts]
        return [y for y, _ in found], torch.cat([last for _, last in found], dim=-1)

    def initial_state(self, batch: int, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        """Zeros (B, taps - 1, C)."""
        return torch.zeros(batch, self.taps - 1, self.channels, device=device, dtype=dtype)

    @property
    def state_elements(self) -> int:
        return (self.taps - 1) * self.channels

    @property
    def flops(self) -> int:
        """Of one token: a multiply-add a tap."""
        return 2 * self.taps * self.channels
