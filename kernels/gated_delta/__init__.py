"""The gated delta rule and product: a step-by-step truth and a chunked form."""

from kernels.gated_delta.chunked import gated_delta
from kernels.gated_delta.product import gated_delta_product
from kernels.gated_delta.pulled_back import pulled_back

__all__ = ["gated_delta", "gated_delta_product", "pulled_back"]
