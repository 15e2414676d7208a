"""What RNN, GRU and LSTM share: projections, convolution, a scan by heads, gate and norm."""

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from blocks.base import Cost, Drives, SequenceMixer, State
from blocks.convolution import ShortConvolution
from blocks.gated_norm import GatedNorm
from blocks.initialisation import (
    Constant,
    Identity,
    Normal,
    Orthogonal,
    Parameter,
    Start,
    Uniform,
)
from blocks.linear import Linear, linear_flops
from blocks.options import require_not_negative, require_positive, require_range

WeightStart = Literal["normal", "identity", "orthogonal"]


class VectorRecurrence(SequenceMixer):
    """x -> inputs of the scan by heads -> (y ⊙ SiLU(g)) -> RMSNorm over all N V -> projection.

    A subclass names its gates and its state, and scans. The input projection holds the candidate x,
    the gates in their order, and the output gate g; the convolution sees x alone.
    """

    gates: ClassVar[tuple[str, ...]] = ()
    carried: ClassVar[tuple[str, ...]] = ("state",)
    biased: ClassVar[str] = ""  # the gate that `gate_bias` makes slow

    def __init__(self, options: Any, *, width: int, depth: int) -> None:
        super().__init__(options, width=width, depth=depth)
        o = self.options
        self.size = o.heads * o.head_dim
        self.input = Linear(width, (len(self.gates) + 2) * self.size)
        self.convolution = ShortConvolution(self.size, o.convolution) if o.convolution else None
        shape = (o.heads, o.head_dim, o.head_dim)
        self.weight = nn.Parameter(torch.empty(shape))
        for gate in self.gates:
            self.register_parameter(f"{gate}_weight", nn.Parameter(torch.empty(shape)))
        self.gate_bias = nn.Parameter(torch.empty(self.size)) if self._has_bias else None
        self.norm = GatedNorm(self.size, eps=o.norm_eps)
        self.output = Linear(self.size, width)

    def gate_weight(self, gate: str) -> Tensor:
        """The state's weights for one of `gates`, (N, V, V)."""
        return self.get_parameter(f"{gate}_weight")

    @property
    def _has_bias(self) -> bool:
        return bool(self.biased) and self.options.gate_bias is not None

    @classmethod
    def complete(cls, options: Any, *, width: int) -> Any:
        require_positive(options, "head_dim", "heads", "norm_eps")
        require_not_negative(options, "convolution", "weight_std")
        if cls.biased:
            require_range(options, "gate_bias")
        heads = options.heads or max(1, round(4 * width / (3 * options.head_dim)))
        return replace(options, heads=heads)

    def uncompiled(self) -> tuple[str, ...]:
        return ("scan",)

    @abstractmethod
    def scan(
        self, inputs: list[Tensor], state: tuple[Tensor, ...], reset: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The candidate and each gate's input (B, T, N, V) -> y (B, T, N, V) and the state."""

    def forward(
        self, x: Tensor, state: State | None = None, *, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        if state is None:
            state = self.initial_state(x.shape[0], device=x.device, dtype=x.dtype)
        inputs, output_gate, after = self._inputs(x, state, reset)
        y_BTNV, last = self.scan(inputs, tuple(state[name] for name in self.carried), reset)
        after |= dict(zip(self.carried, last, strict=True))
        return self.output(self.norm(y_BTNV.flatten(2), output_gate)), after

    def _inputs(
        self, x: Tensor, state: State, reset: Tensor | None
    ) -> tuple[list[Tensor], Tensor, State]:
        """The candidate and each gate's input by heads, the output gate, the convolution's part."""
        candidate, *gates, output_gate = self.input(x).chunk(len(self.gates) + 2, dim=-1)
        after: State = {}
        if self.convolution is not None:
            candidate, after["convolution"] = self.convolution(
                candidate, state["convolution"], reset
            )
        if self.gate_bias is not None:
            slow = self.gates.index(self.biased)
            gates[slow] = gates[slow] + self.gate_bias.to(gates[slow].dtype)
        inputs = [part.unflatten(-1, (self.options.heads, -1)) for part in (candidate, *gates)]
        return inputs, output_gate, after

    def drives(self, x: Tensor, state: State | None = None) -> Drives:
        if state is None:
            state = self.initial_state(x.shape[0], device=x.device, dtype=x.dtype)
        inputs, _, _ = self._inputs(x, state, None)
        # The gates read the state as well: their own values do not follow from the inputs.
        return Drives(log_keep=None, inputs=dict(zip(("x", *self.gates), inputs, strict=True)))

    def initial_state(
        self, batch: int, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> State:
        shape = (batch, self.options.heads, self.options.head_dim)
        state = {name: torch.zeros(shape, device=device, dtype=dtype) for name in self.carried}
        if self.convolution is not None:
            state["convolution"] = self.convolution.initial_state(batch, device, dtype)
        return state

    def declared_parameters(self) -> dict[str, Parameter]:
        o = self.options
        starts: dict[WeightStart, Start] = {
            "normal": Normal(o.weight_std), "identity": Identity(), "orthogonal": Orthogonal()
        }  # fmt: skip
        declared = {
            "input.weight": self.projection(),
            "weight": Parameter(starts[o.weight_init], decay=o.weight_decay, role="recurrence"),
            "norm.weight": Parameter(Constant(1.0), decay=False),
            "output.weight": self.output_projection(),
        }
        for gate in self.gates:
            declared[f"{gate}_weight"] = Parameter(
                Normal(o.weight_std), decay=o.weight_decay, role="gate"
            )
        if self.gate_bias is not None:
            declared["gate_bias"] = Parameter(Uniform(*o.gate_bias), decay=False, role="bias")
        if self.convolution is not None:
            declared["convolution.weight"] = self.projection()
        return declared

    def cost(self, length: int) -> Cost:
        o, D, size = self.options, self.width, self.size
        inputs = (len(self.gates) + 2) * size
        recurrent = (len(self.gates) + 1) * size * o.head_dim
        return Cost(
            parameters=D * inputs
            + o.convolution * size
            + recurrent
            + (size if self._has_bias else 0)
            + size
            + size * D,
            state_elements=len(self.carried) * size,
            convolution_elements=max(o.convolution - 1, 0) * size,
            forward_flops_per_token=linear_flops(D, inputs)
            + 2 * o.convolution * size
            + 2 * recurrent
            + linear_flops(size, D),
        )
