"""Mamba-2 (arXiv 2405.21060), as the M²RNN paper compares it (m2rnn.md §2.4)."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from blocks.base import Cost, Drives, State
from blocks.convolution import ShortConvolution
from blocks.decay_gate import A_RANGE, DT_FLOOR, DT_RANGE, SoftplusDecay, prefixed
from blocks.gated_norm import EPS_HELP, NORM_EPS, GatedNorm, Order
from blocks.initialisation import Constant, Parameter
from blocks.linear import Linear, linear_flops
from blocks.linear_state import Inputs, LinearState
from blocks.options import option, require_not_negative, require_positive, require_range
from kernels.backends import backends_used
from kernels.decay import padded_length
from kernels.ssd import ssd_scan
from kernels.ssd.chunked import CHUNK


class Mamba2(LinearState):
    """S_t = exp(-A dt_t) S_{t-1} + dt_t B_t x_tᵀ;  y_t = S_tᵀ C_t + D x_t, by heads."""

    summary = "Mamba-2: a linear matrix state with one decay a head"
    kernels = ("ssd", "convolution")

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Options:
        head_dim: int | None = option(None, "P: by default 64, 16 where the width is under 512")
        heads: int | None = option(None, "N; by default N P is about 1.25 times the width")
        state_dim: int | None = option(
            None, "rows of the state; by default N P times it is about width² / 4, a multiple of 8"
        )
        groups: int = option(1, "groups of heads that share B and C")
        convolution: int = option(
            4, "taps of the causal depthwise convolution with SiLU on x, B, C; 0: neither"
        )
        convolution_bias: bool = option(True, "whether the convolution has a bias")
        order: Order = option(
            "gate_norm", "gate_norm: RMS(y ⊙ SiLU(g)) (published);  norm_gate: RMS(y) ⊙ SiLU(g)"
        )
        norm_eps: float = option(NORM_EPS, EPS_HELP)
        rate: tuple[float, float] = option(A_RANGE, "start of A ~ U(low, high)")
        step: tuple[float, float] = option(
            DT_RANGE, "start of softplus(dt_bias), log-uniform on the range"
        )
        floor: float = option(DT_FLOOR, "least start of softplus(dt_bias)")

    def __init__(self, options: Options, *, width: int, depth: int) -> None:
        super().__init__(options, width=width, depth=depth)
        o = self.options
        self.size, self.shared = o.heads * o.head_dim, o.groups * o.state_dim
        channels = self.size + 2 * self.shared
        self.input = Linear(width, self.size + channels + o.heads)  # gate, x, B, C, dt
        self.convolution = (
            ShortConvolution(channels, o.convolution, bias=o.convolution_bias)
            if o.convolution
            else None
        )
        self.decay = SoftplusDecay(o.heads, rate=o.rate, step=o.step, floor=o.floor)
        self.residual = nn.Parameter(torch.empty(o.heads))
        self.norm = GatedNorm(self.size, order=o.order, eps=o.norm_eps)
        self.output = Linear(self.size, width)

    @classmethod
    def complete(cls, options: Options, *, width: int) -> Options:
        require_positive(options, "head_dim", "heads", "state_dim", "groups", "floor", "norm_eps")
        require_not_negative(options, "convolution")
        require_range(options, "rate", least=0)
        require_range(options, "step", least=1e-12)
        head_dim = options.head_dim or (64 if width >= 512 else 16)
        heads = options.heads or max(1, round(1.25 * width / head_dim)) * options.groups
        state_dim = options.state_dim or 8 * max(1, round(width**2 / (32 * heads * head_dim)))
        if heads % options.groups:
            raise ValueError(f"groups {options.groups} does not divide heads {heads}")
        return replace(options, head_dim=head_dim, heads=heads, state_dim=state_dim)

    def forward(
        self, x: Tensor, state: State | None = None, *, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        inputs, value_BTNV, gate, after = self._inputs(x, state, reset)
        y_BTNV, carried = self.recur(inputs, state, reset)
        dtype = value_BTNV.dtype
        y_BTNV = y_BTNV.to(dtype) + self.residual.to(dtype)[:, None] * value_BTNV
        return self.output(self.norm(y_BTNV.flatten(2), gate)), after | carried

    def _inputs(
        self, x: Tensor, state: State | None, reset: Tensor | None
    ) -> tuple[Inputs, Tensor, Tensor, State]:
        """What the scan reads, x by heads, the output gate, and what the convolution carries."""
        o, after = self.options, {}
        channels = self.size + 2 * self.shared
        gate, xbc, a = self.input(x).split([self.size, channels, o.heads], dim=-1)
        if self.convolution is not None:
            xbc, after["convolution"] = self.convolution(
                xbc, None if state is None else state["convolution"], reset
            )
        value, key, query = xbc.split([self.size, self.shared, self.shared], dim=-1)
        value_BTNV = value.unflatten(-1, (o.heads, -1))
        log_decay, dt = self.decay.with_step(a)
        inputs = {
            "query": query.unflatten(-1, (o.groups, -1)),
            "key": key.unflatten(-1, (o.groups, -1)),
            "value": value_BTNV * dt[..., None],
            "log_decay": log_decay,
        }
        return inputs, value_BTNV, gate, after

    def uncompiled(self) -> tuple[str, ...]:
        # mamba-ssm's is an operator that a compiled graph holds; our own is a loop over chunks
        return () if "mamba_ssm" in backends_used().get("ssd", ()) else ("scan",)

    def scan(
        self, inputs: Inputs, state: State | None, reset: Tensor | None
    ) -> tuple[Tensor, State]:
        y, last = ssd_scan(
            inputs["query"], inputs["key"], inputs["value"], inputs["log_decay"],
            None if state is None else state["state"], reset=reset,
        )  # fmt: skip
        return y, {"state": last}

    def pull_back(self, inputs: Inputs, steps: int) -> Tensor:
        total = inputs["log_decay"].cumsum(dim=1)
        query = inputs["query"][:, steps:].repeat_interleave(
            self.options.heads // self.options.groups, dim=2
        )
        return query * (total[:, steps:] - total[:, :-steps]).exp()[..., None]

    def drives(self, x: Tensor, state: State | None = None) -> Drives:
        inputs, value, _, _ = self._inputs(x, state, None)
        step = inputs["log_decay"] / -self.decay.A_log.exp()
        return Drives(
            log_keep=inputs["log_decay"],
            inputs={"dt": step[..., None], "B": inputs["key"], "x": value, "C": inputs["query"]},
        )

    def initial_state(
        self, batch: int, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> State:
        o = self.options
        shape = (batch, o.heads, o.state_dim, o.head_dim)
        state = {"state": torch.zeros(shape, device=device, dtype=dtype)}
        if self.convolution is not None:
            state["convolution"] = self.convolution.initial_state(batch, device, dtype)
        return state

    def declared_parameters(self) -> dict[str, Parameter]:
        one = Parameter(Constant(1.0), decay=False)
        declared = {
            "input.weight": self.projection(),
            **prefixed("decay", self.decay.declared_parameters()),
            "residual": one,
            "norm.weight": one,
            "output.weight": self.output_projection(),
        }
        if self.convolution is not None:
            declared["convolution.weight"] = self.projection()
            if self.convolution.bias is not None:
                declared["convolution.bias"] = Parameter(Constant(0.0), decay=False)
        return declared

    def cost(self, length: int) -> Cost:
        o, D, N = self.options, self.width, self.options.heads
        channels, taps = self.size + 2 * self.shared, o.convolution
        biases = channels if o.convolution and o.convolution_bias else 0
        inputs, chunk = self.size + channels + N, min(CHUNK, length)
        K, V = o.state_dim, o.head_dim
        return Cost(
            parameters=D * (inputs + self.size) + taps * channels + biases + 3 * N + self.size,
            state_elements=N * K * V,
            convolution_elements=max(taps - 1, 0) * channels,
            # scores B·C a group, their product with x a head, and what enters and leaves the state
            forward_flops_per_token=linear_flops(D, inputs)
            + linear_flops(self.size, D)
            + 2 * taps * channels
            + padded_length(length, CHUNK)
            / length
            * (2 * chunk * K * o.groups + N * (2 * chunk * V + 4 * K * V)),
        )
