"""The LSTM by heads, in the frame in which the paper puts RNN and GRU."""

import torch
from torch import Tensor

from blocks.vector_options import GatedOptions
from blocks.vector_recurrence import VectorRecurrence
from kernels.rnn import lstm_scan


class LSTM(VectorRecurrence):
    """c_t = σ(f) ⊙ c_{t-1} + σ(i) ⊙ tanh(h_{t-1} W + x_t);  h_t = σ(o) ⊙ tanh(c_t), by heads."""

    summary = "LSTM by heads: a vector state and a gated cell"
    kernels = ("lstm", "convolution")
    gates = ("input", "forget", "output")
    carried = ("state", "cell")
    biased = "forget"

    Options = GatedOptions

    def scan(
        self, inputs: list[Tensor], state: tuple[Tensor, ...], reset: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        x, *gates = inputs
        weights = [self.gate_weight(gate) for gate in self.gates]
        y, *last = lstm_scan(
            torch.cat([*gates, x], dim=-1), torch.cat([*weights, self.weight], dim=-1),
            *state, clip=self.options.clip, reset=reset,
        )  # fmt: skip
        return y, tuple(last)
