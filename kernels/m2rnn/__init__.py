"""The M²RNN scan: one function, several backends. See `m2rnn_scan`."""

from kernels.m2rnn.scan import m2rnn_scan

__all__ = ["m2rnn_scan"]
