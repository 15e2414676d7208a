"""The output of a recurrent mixer: an RMSNorm and a SiLU gate, in either order."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.gated_norm import LARGEST, can_fuse
from kernels.normalisation import rms_norm

Order = Literal["gate_norm", "norm_gate"]
Scope = Literal["whole", "head", "group", "none"]

NORM_EPS = 1e-5
EPS_HELP = "ε of the output's RMSNorm; far above the mean square it meets, it keeps the branch shut"


class GatedNorm(nn.Module):
    """gate_norm: w ⊙ RMS(y ⊙ SiLU(g));  norm_gate: (w ⊙ RMS(y)) ⊙ SiLU(g).

    The mean square runs over each of `groups` equal parts of the last axis. The weight spans one
    part if `shared`, else the whole axis. Without a gate only the norm is left; with no groups,
    only the gate.
    """

    def __init__(
        self,
        size: int,
        *,
        groups: int = 1,
        shared: bool = False,
        order: Order = "gate_norm",
        eps: float = NORM_EPS,
    ) -> None:
        """Raises ValueError if `groups` does not divide `size`."""
        super().__init__()
        self.groups, self.shared, self.order, self.eps = groups, shared, order, eps
        self.weight = None
        if groups:
            if size % groups:
                raise ValueError(f"{groups} norm groups do not divide {size} channels")
            self.weight = nn.Parameter(torch.empty(size // groups if shared else size))

    def forward(
        self,
        y: Tensor,
        gate: Tensor | None,
        *,
        value: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """y, gate and value (B, T, size); with `residual` (size), y + residual ⊙ value takes y's
        place."""
        if gate is not None and self._in_one_kernel(y, gate, value, residual):
            from kernels.gated_norm.in_one import gate_norm  # needs triton

            assert self.weight is not None
            return gate_norm(y, value, residual, gate, self.weight, self.eps)
        if value is not None and residual is not None:
            y = y + residual.to(value.dtype) * value
        if self.weight is None:
            return y if gate is None else y * F.silu(gate)
        if gate is not None and self.order == "gate_norm":
            y = y * F.silu(gate)
        weight = self.weight if self.shared else self.weight.unflatten(0, (self.groups, -1))
        y = rms_norm(y.unflatten(-1, (self.groups, -1)), weight, self.eps).flatten(-2)
        return y * F.silu(gate) if gate is not None and self.order == "norm_gate" else y

    def _in_one_kernel(self, y: Tensor, gate: Tensor, *others: Tensor | None) -> bool:
        whole = self.groups == 1 and self.order == "gate_norm" and y.shape[-1] <= LARGEST
        return whole and can_fuse(y, gate, self.weight, *others)
