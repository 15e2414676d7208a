"""The options of RNN, GRU and LSTM by heads: one frame, so that they differ in nothing else."""

from dataclasses import dataclass

from blocks.gated_norm import EPS_HELP, NORM_EPS
from blocks.options import option
from blocks.vector_recurrence import WeightStart
from kernels.m2rnn.reference import Clip


@dataclass(frozen=True, kw_only=True, slots=True)
class VectorOptions:
    """Of a mixer with a vector state."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class GatedOptions(VectorOptions):
    """Of one with gates."""

    weight_init: WeightStart = option(
        "normal",
        "start of W: normal (published for the GRU), identity or orthogonal; the gates' weights "
        "start normal",
    )
    weight_decay: bool = option(
        False, "whether decay pulls on W and the gates' weights (published for the GRU: no)"
    )
    gate_bias: tuple[float, float] | None = option(
        None,
        "add b to the input of f, b ~ U(low, high), so that f starts slow; none (published for the "
        "GRU): no b",
    )
