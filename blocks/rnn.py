"""The tanh RNN by heads, as the M²RNN paper compares it (m2rnn.md §2.5)."""

from torch import Tensor

from blocks.vector_options import VectorOptions
from blocks.vector_recurrence import VectorRecurrence
from kernels.rnn import rnn_scan


class RNN(VectorRecurrence):
    """h_t = tanh(h_{t-1} W + x_t) by heads."""

    summary = "tanh RNN by heads: a vector state, no gate on it"
    kernels = ("rnn", "convolution")

    Options = VectorOptions

    def scan(
        self, inputs: list[Tensor], state: tuple[Tensor, ...], reset: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        (x,) = inputs
        y, last = rnn_scan(x, self.weight, *state, clip=self.options.clip, reset=reset)
        return y, (last,)
