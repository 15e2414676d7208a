"""Muon: steps along orthogonalised momentum for matrices, AdamW for the rest (2502.16982)."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic iteration (Jordan 2024)
ITERATIONS = 5
RMS = 0.2  # of a step's elements before the learning rate: about AdamW's, so that its rates fit
LEAST = 16  # rows and columns: below it is a vector for each channel, as taps of a convolution


def is_matrix(name: str, parameter: Tensor, *, diagonal: bool = False) -> bool:
    """Whether Muon moves a parameter: a hidden matrix, or a stack of them (heads, experts).

    Embedding and head read and write single tokens, and go with AdamW as vectors do.

    Args:
        diagonal: a two-dimensional parameter holds diagonals, a row for each head.
    """
    if name in ("embedding.weight", "head.weight") or parameter.ndim not in (2, 3) or diagonal:
        return False
    # a stack's matrices may be small, as M²RNN's W is for each head
    return parameter.ndim == 3 or min(parameter.shape) >= LEAST


class Muon(torch.optim.AdamW):
    """AdamW, but for the groups that say "matrices": those step by orthogonalised momentum.

    B <- μ B + (1 - μ) g;  θ <- (1 - η λ) θ - η 0.2 sqrt(max(m, n)) orthogonal(μ B + (1 - μ) g)

    for each m x n matrix, of which a three-dimensional parameter is a stack. torch.optim.Muon
    computes the same for two dimensions, with `match_rms_adamw`, a matrix at a time.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step of every parameter that has a gradient."""
        groups = self.param_groups
        self.param_groups = [group for group in groups if not group.get("matrices")]
        try:
            super().step()
        finally:
            self.param_groups = groups
        for group in groups:
            if group.get("matrices"):
                self._step_matrices(group)

    def _step_matrices(self, group: dict[str, Any]) -> None:
        alike: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
        for parameter in group["params"]:
            if parameter.grad is not None:
                alike[tuple(parameter.shape[-2:])].append(parameter)
        for shape, parameters in alike.items():
            updates = [self._momentum(parameter) for parameter in parameters]
            scale = RMS * max(shape) ** 0.5
            for parameter, step in zip(parameters, _orthogonal_each(updates), strict=True):
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(step.to(parameter.dtype), alpha=-group["lr"] * scale)

    def _momentum(self, parameter: Tensor) -> Tensor:
        """Nesterov's: the momentum as it will be if the gradient stays."""
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(gradient)
        state["momentum"].lerp_(gradient, 1 - MOMENTUM)
        return gradient.lerp(state["momentum"], MOMENTUM)


def _orthogonal_each(updates: Sequence[Tensor]) -> list[Tensor]:
    """Orthogonalise matrices and stacks of one matrix shape in one batch."""
    stacks = [update.reshape(-1, *update.shape[-2:]) for update in updates]
    found = orthogonal(torch.cat(stacks)).split([len(stack) for stack in stacks])
    return [part.reshape(update.shape) for part, update in zip(found, updates, strict=True)]


def orthogonal(matrices: Tensor) -> Tensor:
    """(..., m, n): the nearest matrices of singular values about 1 (0.7 to 1.2), in bfloat16.

    By five rounds of X <- a X + (b X Xᵀ + c (X Xᵀ)²) X from a spectral norm below 1.
    """
    a, b, c = COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = (matrices.mT if tall else matrices).to(torch.bfloat16)
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x
