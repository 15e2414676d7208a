"""The forget gates of M²RNN: what decides how much of the old state a step keeps."""

from typing import Literal

import torch
from torch import Tensor, nn

from blocks.base import INITIAL_STD
from blocks.decay_gate import A_RANGE, DT_FLOOR, DT_RANGE, SoftplusDecay, prefixed
from blocks.initialisation import Normal, Parameter, Uniform

Gate = Literal["softplus_decay", "sigmoid", "constant", "none", "state"]

BIAS_RANGE = (1.0, 5.0)


class ForgetGate(nn.Module):
    """f_t from its projection a_t; `inputs` of the block's projection belong to it.

    softplus_decay: exp(-exp(A) softplus(a_t + dt));  constant: the same with a_t = 0;
    sigmoid: σ(a_t + b);  state: σ(a_t + b + H_{t-1}[k, :]·u);  none: 0.
    """

    def __init__(
        self,
        kind: Gate,
        heads: int,
        *,
        state_heads: int,
        value_dim: int,
        rate: tuple[float, float] = A_RANGE,
        step: tuple[float, float] = DT_RANGE,
        floor: float = DT_FLOOR,
        bias: tuple[float, float] = BIAS_RANGE,
        rounded: bool = False,
    ) -> None:
        """`state_heads` is N, the heads of H; `rounded` rounds f to bfloat16, as published."""
        super().__init__()
        self.kind, self.heads, self.bias_range, self.rounded = kind, heads, bias, rounded
        self.inputs = heads if kind in ("softplus_decay", "sigmoid", "state") else 0
        self.decay = self.bias = self.state_weight = None
        if kind in ("softplus_decay", "constant"):
            self.decay = SoftplusDecay(heads, rate=rate, step=step, floor=floor)
        if kind in ("sigmoid", "state"):
            self.bias = nn.Parameter(torch.empty(heads))
        if kind == "state":
            self.state_weight = nn.Parameter(torch.empty(state_heads, value_dim))

    def forward(self, a: Tensor) -> tuple[Tensor, Tensor | None]:
        """a (B, T, inputs) -> f (B, T, heads); for the state gate its pre-activation, and u."""
        wide = torch.float64 if a.dtype == torch.float64 else torch.float32
        if self.kind == "none":
            return a.new_zeros(*a.shape[:2], 1, dtype=wide), None
        if self.kind == "constant":
            a = a.new_zeros(*a.shape[:2], self.heads, dtype=wide)
        if self.decay is not None:
            f = self.decay(a).exp()
        else:
            assert self.bias is not None
            f = a.to(wide) + self.bias
            if self.kind == "state":
                return f, self.state_weight
            f = torch.sigmoid(f)
        return (f.bfloat16().to(wide) if self.rounded else f), None

    def declared_parameters(self, std: float = INITIAL_STD) -> dict[str, Parameter]:
        """Decay pulls on u alone."""
        declared: dict[str, Parameter] = {}
        if self.decay is not None:
            declared |= prefixed("decay", self.decay.declared_parameters())
        if self.bias is not None:
            declared["bias"] = Parameter(Uniform(*self.bias_range), decay=False, role="bias")
        if self.state_weight is not None:
            declared["state_weight"] = Parameter(Normal(std), decay=True)
        return declared
