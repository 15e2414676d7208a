"""Gated DeltaProduct (arXiv 2502.10297): Gated DeltaNet with several corrections a token."""

from dataclasses import dataclass
from typing import Any

from blocks.gated_deltanet import GatedDeltaNet
from blocks.options import option, require_positive


class GatedDeltaProduct(GatedDeltaNet):
    """S <- a_t S;  n times S <- (I - b_j k_j k_jᵀ) S + b_j k_j v_jᵀ;  y_t = Sᵀ q_t / sqrt(K)."""

    summary = "Gated DeltaProduct: several delta-rule corrections a token"
    kernels = ("gated_delta", "convolution")

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Options(GatedDeltaNet.Options):
        householders: int = option(2, "n: corrections a token, each with its own k, v and b")
        negative_eigenvalues: bool = option(
            True, "b = 2 σ(.) in place of σ(.), so that I - b k kᵀ may reflect"
        )

    @property
    def householders(self) -> int:
        """n: the corrections a token."""
        return self.options.householders

    @classmethod
    def complete(cls, options: Any, *, width: int) -> Any:
        require_positive(options, "householders")
        return super().complete(options, width=width)
