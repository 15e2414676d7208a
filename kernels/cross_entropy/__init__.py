"""The next token's loss straight from features, without all logits at once."""

from kernels.cross_entropy.linear import linear_cross_entropy

__all__ = ["linear_cross_entropy"]
