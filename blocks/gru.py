"""The GRU by heads, as the M²RNN paper compares it (m2rnn.md §2.6)."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from blocks.base import Cost, SequenceMixer, State
from blocks.convolution import ShortConvolution
from blocks.gated_norm import GatedNorm
from blocks.initialisation import Constant, Identity, Normal, Orthogonal, Parameter, Start
from blocks.linear import Linear, linear_flops
from blocks.options import option, require_positive
from kernels.m2rnn.reference import Clip
from kernels.rnn import gru_scan

WeightStart = Literal["normal", "identity", "orthogonal"]


def weight_start(name: WeightStart, std: float) -> Start:
    """The start of the state's weights, a stack of V x V matrices."""
    return {"normal": Normal(std), "identity": Identity(), "orthogonal": Orthogonal()}[name]


def default_heads(width: int, head_dim: int) -> int:
    """Heads so that N V is about 4/3 of the width: 85 x 16 at 1024, 128 x 16 at 1536."""
    return max(1, round(4 * width / (3 * head_dim)))


class GRU(SequenceMixer):
    """h_t = f ⊙ h_{t-1} + (1 - f) ⊙ tanh((r ⊙ h_{t-1}) W + x_t), then gate, norm, projection."""

    summary = "GRU by heads: a vector state, read and written whole"

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Options:
        head_dim: int = option(16, "V: the size of one head's state h")
        heads: int | None = option(None, "N; by default N V is about 4/3 of the width")
        convolution: int = option(
            4, "taps of the causal depthwise convolution with SiLU on x alone; 0: neither"
        )
        weight_init: WeightStart = option(
            "normal", "start of W, W_f and W_r: normal (published), identity or orthogonal"
        )
        weight_std: float = option(0.02, "standard deviation of a normal start")
        weight_decay: bool = option(False, "whether decay pulls on W, W_f and W_r")
        clip: Clip = option(
            "carry", "what of dL/dh is clamped to [-1, 1] each step: carry, sum or none"
        )

    def __init__(self, options: Options, *, width: int, depth: int) -> None:
        super().__init__(options, width=width, depth=depth)
        o = self.options
        self.heads, size = o.heads, o.heads * o.head_dim
        self.input = Linear(width, 4 * size)  # x, forget, recall, output gate
        self.convolution = ShortConvolution(size, o.convolution) if o.convolution else None
        shape = (o.heads, o.head_dim, o.head_dim)
        self.weight = nn.Parameter(torch.empty(shape))
        self.forget_weight = nn.Parameter(torch.empty(shape))
        self.recall_weight = nn.Parameter(torch.empty(shape))
        self.norm = GatedNorm(size)
        self.output = Linear(size, width)

    @classmethod
    def complete(cls, options: Options, *, width: int) -> Options:
        require_positive(options, "head_dim", "heads")
        heads = options.heads or default_heads(width, options.head_dim)
        return replace(options, heads=heads)

    def forward(
        self, x: Tensor, state: State | None = None, *, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        x_BTX, forget, recall, gate = self.input(x).chunk(4, dim=-1)
        after: State = {}
        if self.convolution is not None:
            x_BTX, after["convolution"] = self.convolution(
                x_BTX, None if state is None else state["convolution"], reset
            )
        x_BTNV, forget, recall = (
            part.unflatten(-1, (self.heads, -1)) for part in (x_BTX, forget, recall)
        )
        y_BTNV, after["state"] = gru_scan(
            x_BTNV, forget, recall, self.weight, self.forget_weight, self.recall_weight,
            None if state is None else state["state"], clip=self.options.clip, reset=reset,
        )  # fmt: skip
        return self.output(self.norm(y_BTNV.flatten(2), gate)), after

    def initial_state(
        self, batch: int, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> State:
        o = self.options
        state = {"state": torch.zeros(batch, o.heads, o.head_dim, device=device, dtype=dtype)}
        if self.convolution is not None:
            state["convolution"] = self.convolution.initial_state(batch, device, dtype)
        return state

    def declared_parameters(self) -> dict[str, Parameter]:
        o = self.options
        weight = Parameter(weight_start(o.weight_init, o.weight_std), decay=o.weight_decay)
        declared = {
            "input.weight": self.projection(),
            "weight": weight,
            "forget_weight": weight,
            "recall_weight": weight,
            "norm.weight": Parameter(Constant(1.0), decay=False),
            "output.weight": self.output_projection(),
        }
        if self.convolution is not None:
            declared["convolution.weight"] = self.projection()
        return declared

    def cost(self, length: int) -> Cost:
        o, D = self.options, self.width
        size, taps = o.heads * o.head_dim, o.convolution
        recurrent = 3 * o.heads * o.head_dim**2
        return Cost(
            parameters=4 * D * size + taps * size + recurrent + size + size * D,
            state_elements=size,
            convolution_elements=max(taps - 1, 0) * size,
            forward_flops_per_token=linear_flops(D, 4 * size)
            + 2 * taps * size
            + 2 * recurrent
            + linear_flops(size, D),
        )
