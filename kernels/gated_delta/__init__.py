"""The gated delta rule: a step-by-step truth and a chunked form. See `gated_delta`."""

from kernels.gated_delta.chunked import gated_delta

__all__ = ["gated_delta"]
