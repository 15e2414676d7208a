"""The LSTM by heads, in the frame in which the paper puts RNN and GRU."""

from dataclasses import dataclass

import torch
from torch import Tensor

from blocks.gated_norm import EPS_HELP, NORM_EPS
from blocks.options import option
from blocks.vector_recurrence import VectorRecurrence, WeightStart
from kernels.m2rnn.reference import Clip
from kernels.rnn import lstm_scan


class LSTM(VectorRecurrence):
    """c_t = σ(f) ⊙ c_{t-1} + σ(i) ⊙ tanh(h_{t-1} W + x_t);  h_t = σ(o) ⊙ tanh(c_t), by heads."""

    summary = "LSTM by heads: a vector state and a gated cell"
    kernels = ("lstm", "convolution")
    gates = ("input", "forget", "output")
    carried = ("state", "cell")
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
            "start of W: normal, identity or orthogonal; the gates' weights start normal",
        )
        weight_std: float = option(0.02, "standard deviation of a normal start")
        gate_bias: tuple[float, float] | None = option(
            None,
            "add b to the input of f, b ~ U(low, high), so that f starts slow; none: no b",
        )
        weight_decay: bool = option(False, "whether decay pulls on W and the gates' weights")
        norm_eps: float = option(NORM_EPS, EPS_HELP)
        clip: Clip = option(
            "carry",
            "what of dL/dh is clamped to [-1, 1] each step: carry, the part from later steps; sum, "
            "that and the output's; none",
        )

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
