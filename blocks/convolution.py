"""The short causal convolution that many mixers put behind their input projection."""

import torch
import torch.nn.functional as F
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
        y, last = causal_convolution(x, self.weight, self.bias, state, reset=reset)
        return F.silu(y), last

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
