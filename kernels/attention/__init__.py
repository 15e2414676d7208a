"""Causal softmax attention: whole, over packed documents, or in a sliding window."""

from kernels.attention.causal import causal_attention, flex_is_asked_for

__all__ = ["causal_attention", "flex_is_asked_for"]
