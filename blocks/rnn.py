"""The tanh RNN by heads, as the M²RNN paper compares it (m2rnn.md §2.5)."""

from dataclasses import dataclass

from torch import Tensor

from blocks.gated_norm import EPS_HELP, NORM_EPS
from blocks.options import option
from blocks.vector_recurrence import VectorRecurrence, WeightStart
from kernels.m2rnn.reference import Clip
from kernels.rnn import rnn_scan


class RNN(VectorRecurrence):
    """h_t = tanh(h_{t-1} W + x_t) by heads."""

    summary = "tanh RNN by heads: a vector state, no gate on it"
    kernels = ("rnn", "convolution")

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Options:
        head_dim: int = option(16, "V: the size of one head's state")
        heads: int | None = option(None, "N; by default N V is about 4/3 of the width")
        convolution: int = option(
            4, "taps of the causal depthwise convolution with SiLU on x alone; 0: neither"
        )
        weight_init: WeightStart = option(
            "normal", "start of W: normal (published), identity or orthogonal"
        )
        weight_std: float = option(0.02, "standard deviation of a normal start")
        weight_decay: bool = option(False, "whether decay pulls on W (published: no)")
        norm_eps: float = option(NORM_EPS, EPS_HELP)
        clip: Clip = option(
            "carry",
            "what of dL/dh is clamped to [-1, 1] each step: carry, the part from later steps; sum, "
            "that and the output's; none",
        )

    def scan(
        self, inputs: list[Tensor], state: tuple[Tensor, ...], reset: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        (x,) = inputs
        y, last = rnn_scan(x, self.weight, *state, clip=self.options.clip, reset=reset)
        return y, (last,)
