"""Norms over the last axis."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """weight ⊙ x / sqrt(mean(x²) + eps) over the last axis, in float32 or wider; x's dtype back."""
    wide = x if x.dtype == torch.float64 else x.float()
    y = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (y if weight is None else y * weight).to(x.dtype)


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(sum(x²) + eps) over the last axis, in float32 or wider; x's dtype back."""
    wide = x if x.dtype == torch.float64 else x.float()
    return (wide * torch.rsqrt(wide.square().sum(dim=-1, keepdim=True) + eps)).to(x.dtype)
