"""The gated norm in one kernel against torch: for the interpreter and for the GPU."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.gated_norm.in_one import gate_norm
from kernels.normalisation import rms_norm

EPS = 1e-5


def norm_errors(
    device: str, dtype: torch.dtype, *, B: int, T: int, S: int, residual: bool
) -> dict[str, float]:
    """Relative errors against float64 of the output and gradients; value and gate are slices."""
    generator = torch.Generator(device).manual_seed(S)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, device=device, generator=generator)

    given = [normal(B, T, S).to(dtype), normal(B, T, S + 7)[..., 4 : 4 + S].to(dtype), normal(S)]
    if residual:
        given += [normal(B, T, S + 3)[..., 1 : 1 + S].to(dtype), normal(S)]

    def fused(y, gate, weight, value=None, scale=None):
        return gate_norm(y, value, scale, gate, weight, EPS)

    def plain(y, gate, weight, value=None, scale=None):
        y = y if value is None else y + scale * value
        return rms_norm(y * F.silu(gate), weight, EPS)

    return _errors(fused, plain, given, normal(B, T, S))


def _errors(fused, plain, given: list[Tensor], grad: Tensor) -> dict[str, float]:
    results = []
    for run, wider in ((fused, False), (plain, True)):
        leaves = [(x.double() if wider else x).detach().requires_grad_() for x in given]
        y = run(*leaves)
        results.append([y, *torch.autograd.grad(y, leaves, grad.to(given[0].dtype).to(y.dtype))])
    names = ["output", *(f"gradient {i}" for i in range(len(given)))]
    return {
        name: ((x.double() - y).norm() / y.norm()).item()
        for name, x, y in zip(names, *results, strict=True)
    }


NORMS = [
    {"B": 2, "T": 3, "S": 84, "residual": True},
    {"B": 1, "T": 1, "S": 16, "residual": False},
    {"B": 3, "T": 2, "S": 1344, "residual": True},
]
