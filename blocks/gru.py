"""The GRU by heads, as the M²RNN paper compares it (m2rnn.md §2.6)."""

from dataclasses import dataclass

from torch import Tensor

from blocks.gated_norm import EPS_HELP, NORM_EPS
from blocks.options import option
from blocks.vector_recurrence import VectorRecurrence, WeightStart
from kernels.m2rnn.reference import Clip
from kernels.rnn import gru_scan


class GRU(VectorRecurrence):
    """r = σ(h W_r + r_t);  f = σ(h W_f + f_t);  h_t = f ⊙ h + (1 - f) ⊙ tanh((r ⊙ h) W + x_t)."""

    summary = "GRU by heads: a gated vector state"
    kernels = ("gru", "convolution")
    gates = ("forget", "recall")
    biased = "forget"

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Options:
        head_dim: int = option(16, "V: the size of one head's state")
        heads: int | None = option(None, "N; by default N V is about 4/3 of the width")
        convolution: int = option(
            4, "taps of the causal depthwise convolution with SiLU on x alone; 0: neither"
        )
        weight_init: WeightStart = option(
            "normal",
            "start of W: normal (published), identity or orthogonal; W_f and W_r start normal",
        )
        weight_std: float = option(0.02, "standard deviation of a normal start")
        gate_bias: tuple[float, float] | None = option(
            None,
            "add b to the input of f, b ~ U(low, high), to start slow; none (published): no b",
        )
        weight_decay: bool = option(False, "whether decay pulls on W, W_f and W_r (published: no)")
        norm_eps: float = option(NORM_EPS, EPS_HELP)
        clip: Clip = option(
            "carry",
            "what of dL/dh is clamped to [-1, 1] each step: carry, the part from later steps; sum, "
            "that and the output's; none",
        )

    def scan(
        self, inputs: list[Tensor], state: tuple[Tensor, ...], reset: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        x, forget, recall = inputs
        y, last = gru_scan(
            x, forget, recall, self.weight, self.gate_weight("forget"),
            self.gate_weight("recall"), *state, clip=self.options.clip, reset=reset,
        )  # fmt: skip
        return y, (last,)
