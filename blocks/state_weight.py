"""W, by which M²RNN mixes the columns of its state: its structure, start and constraint."""

from typing import Literal

import torch
from torch import Tensor, nn

from blocks.initialisation import Constant, Identity, Normal, Orthogonal, Parameter, Start

Structure = Literal["dense", "diagonal", "identity"]
WeightStart = Literal["identity", "orthogonal", "normal"]
Constraint = Literal["none", "orthogonal"]


class StateWeight(nn.Module):
    """W as `m2rnn_scan` takes it: (N, V, V), (N, V) for a diagonal, or None for the identity.

    Under the orthogonal constraint W = exp(S - Sᵀ) and S is the parameter: zero for the identity;
    for an orthogonal start N(0, 1), whose exponential spreads over all rotations.
    """

    def __init__(
        self,
        structure: Structure,
        heads: int,
        size: int,
        *,
        start: WeightStart = "identity",
        std: float = 0.02,
        constraint: Constraint = "none",
        decay: bool = True,
    ) -> None:
        """Raises ValueError as `check_state_weight` does."""
        super().__init__()
        check_state_weight(structure, start, constraint)
        self.structure, self.start, self.std = structure, start, std
        self.constraint, self.decay = constraint, decay
        if structure == "identity":
            self.weight = None
        else:
            shape = (heads, size, size) if structure == "dense" else (heads, size)
            self.weight = nn.Parameter(torch.empty(shape))

    def forward(self) -> Tensor | None:
        """W."""
        if self.weight is None or self.constraint == "none":
            return self.weight
        with torch.autocast(self.weight.device.type, enabled=False):
            return torch.linalg.matrix_exp(self.weight - self.weight.mT)

    def declared_parameters(self) -> dict[str, Parameter]:
        """How W, or S under the constraint, starts."""
        if self.weight is None:
            return {}
        start: Start
        if self.constraint == "orthogonal":
            start = Constant(0.0) if self.start == "identity" else Normal(1.0)
        elif self.start == "identity":
            start = Identity() if self.structure == "dense" else Constant(1.0)
        else:
            start = Orthogonal() if self.start == "orthogonal" else Normal(self.std)
        role = "recurrence" if self.constraint == "none" else ""  # S is not W
        return {"weight": Parameter(start, decay=self.decay, role=role)}


def check_state_weight(structure: Structure, start: WeightStart, constraint: Constraint) -> None:
    """Raises ValueError for a start or constraint that the structure cannot have."""
    if structure != "dense" and constraint != "none":
        raise ValueError(
            f"weight_constraint {constraint!r} needs weight 'dense'; weight is {structure!r}"
        )
    if structure == "diagonal" and start == "orthogonal":
        raise ValueError(
            "weight_init 'orthogonal' needs weight 'dense'; a diagonal starts from 'identity' or "
            "'normal'"
        )
    if constraint == "orthogonal" and start == "normal":
        raise ValueError(
            "weight_init 'normal' is not orthogonal; with weight_constraint 'orthogonal' use "
            "'identity' or 'orthogonal'"
        )
