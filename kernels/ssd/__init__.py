"""Mamba-2's state-space dual form: a step-by-step truth and a chunked form. See `ssd_scan`."""

from kernels.ssd.chunked import ssd_scan

__all__ = ["ssd_scan"]
