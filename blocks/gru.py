"""The GRU by heads, as the M²RNN paper compares it (m2rnn.md §2.6)."""

from torch import Tensor

from blocks.vector_options import GatedOptions
from blocks.vector_recurrence import VectorRecurrence
from kernels.rnn import gru_scan


class GRU(VectorRecurrence):
    """r = σ(h W_r + r_t);  f = σ(h W_f + f_t);  h_t = f ⊙ h + (1 - f) ⊙ tanh((r ⊙ h) W + x_t)."""

    summary = "GRU by heads: a gated vector state"
    kernels = ("gru", "convolution")
    gates = ("forget", "recall")
    biased = "forget"

    Options = GatedOptions

    def scan(
        self, inputs: list[Tensor], state: tuple[Tensor, ...], reset: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        x, forget, recall = inputs
        y, last = gru_scan(
            x, forget, recall, self.weight, self.gate_weight("forget"),
            self.gate_weight("recall"), *state, clip=self.options.clip, reset=reset,
        )  # fmt: skip
        return y, (last,)
