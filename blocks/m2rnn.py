"""M²RNN (arXiv 2603.14360): a nonlinear recurrence over a matrix state, every choice an option."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from blocks.base import Cost, Drives, SequenceMixer, State
from blocks.convolution import ShortConvolution
from blocks.decay_gate import A_RANGE, DT_FLOOR, DT_RANGE, prefixed
from blocks.forget_gate import BIAS_RANGE, ForgetGate, Gate
from blocks.gated_norm import EPS_HELP, NORM_EPS, GatedNorm, Order, Scope
from blocks.initialisation import Constant, Parameter
from blocks.linear import Linear, linear_flops, narrow_projection
from blocks.m2rnn_whole import run_whole, runs_whole
from blocks.options import option, require_not_negative, require_positive, require_range
from blocks.state_weight import (
    Constraint,
    StateWeight,
    Structure,
    WeightStart,
    check_state_weight,
)
from kernels.m2rnn import m2rnn_scan
from kernels.m2rnn.reference import Clip, Nonlinearity, Write
from kernels.m2rnn.scan import expand_heads
from kernels.normalisation import l2_norm, rms_norm


class M2RNN(SequenceMixer):
    """Z_t = φ(H_{t-1} W + k_t v_tᵀ);  H_t = f_t H_{t-1} + (1 - f_t) Z_t;  y_t = H_tᵀ q_t + D ⊙ v_t.

    N heads, the largest of the six head counts, which all divide it; H is K x V a head.
    """

    summary = "M²RNN: a nonlinear recurrence over a matrix state, written by outer products"
    kernels = ("m2rnn", "m2rnn_layer", "convolution", "gated_norm")

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Options:
        key_dim: int = option(64, "K: rows of the state H (K x V); the state is N K V elements")
        value_dim: int = option(16, "V: columns of the state H, and the size of W")
        query_heads: int = option(1, "Nq, heads of q in y_t = H_tᵀ q_t; head n reads n // (N / Nq)")
        key_heads: int = option(1, "Nk, heads of k in k_t v_tᵀ")
        value_heads: int | None = option(
            None,
            "Nv, heads of v; by default N V is about 1.3125 times the width, N fits the others",
        )
        forget_heads: int | None = option(None, "Nf, heads of the forget gate f_t; by default N")
        gate_heads: int | None = option(None, "Ng, heads of the output gate g_t; by default N")
        weight_heads: int | None = option(None, "Nw, heads of W in H_{t-1} W; by default N")
        convolution: int = option(
            4, "taps of the causal depthwise convolution with SiLU on q, k, v; 0: neither"
        )
        qk_norm: Literal["none", "l2", "rms"] = option(
            "none", "divide q and k by their norm (l2) or their root mean square (rms)"
        )
        scale: Literal["one", "inverse_sqrt"] = option(
            "one", "q times 1 (published), or times K^(-1/2)"
        )
        value_residual: bool = option(True, "add D ⊙ v_t to y_t, D (N, V) from ones")
        output_gate: bool = option(True, "multiply y_t by SiLU(g_t), g a projection of x")
        order: Order = option(
            "gate_norm", "gate_norm: RMS(y ⊙ SiLU(g)) (published);  norm_gate: RMS(y) ⊙ SiLU(g)"
        )
        norm: Scope = option(
            "whole", "what the RMSNorm's mean square spans: all N V, a head, a group, or no norm"
        )
        norm_groups: int = option(1, "groups of heads for norm: group")
        norm_eps: float = option(NORM_EPS, EPS_HELP)
        gate: Gate = option(
            "softplus_decay",
            "f_t: softplus_decay exp(-exp(A) softplus(a_t + dt));  sigmoid σ(a_t + b);  constant "
            "exp(-exp(A) softplus(dt));  none 0;  state σ(a_t + b + H_{t-1}[k,:]·u), one a row k",
        )
        gate_rate: tuple[float, float] = option(
            A_RANGE, "start of softplus_decay and constant: exp(A) ~ U(low, high)"
        )
        gate_step: tuple[float, float] = option(
            DT_RANGE,
            "start of softplus_decay and constant: softplus(dt) log-uniform on (low, high)",
        )
        gate_floor: float = option(DT_FLOOR, "least start of softplus(dt)")
        gate_bias: tuple[float, float] = option(
            BIAS_RANGE, "start of sigmoid and state: b ~ U(low, high); σ(5) remembers 150 tokens"
        )
        gate_precision: Literal["float32", "bfloat16"] = option(
            "float32",
            "round f_t to this; published: bfloat16, where f > 0.998 becomes 1 (no state gate)",
        )
        nonlinearity: Nonlinearity = option(
            "tanh",
            "φ: tanh, identity, softsign, relu, hard_tanh, or norm_clip: each row of its argument "
            "scaled to norm at most 1 (the bounded linear control)",
        )
        write: Write = option(
            "outer", "what is written: outer k_t v_tᵀ, or delta k_t (v_t - H_{t-1}ᵀ k_t)ᵀ"
        )
        weight: Structure = option(
            "dense", "W: dense V x V, diagonal, or the identity, fixed (without parameters)"
        )
        weight_init: WeightStart = option("identity", "start of W: identity, orthogonal or normal")
        weight_std: float = option(0.02, "standard deviation of a normal start")
        weight_constraint: Constraint = option(
            "none", "orthogonal: W = exp(S - Sᵀ), S learnt, so that W stays orthogonal"
        )
        weight_decay: bool = option(True, "whether decay pulls on W (published: yes)")
        clip: Clip = option(
            "carry",
            "what of dL/dH is clamped to [-1, 1] each step: carry, the part from later steps; sum, "
            "that and the readout's; none",
        )

    def __init__(self, options: Options, *, width: int, depth: int) -> None:
        super().__init__(options, width=width, depth=depth)
        o = self.options
        K, V, self.heads = o.key_dim, o.value_dim, head_count(o)
        size = self.heads * V
        self.forget = ForgetGate(
            o.gate, o.forget_heads, state_heads=self.heads, value_dim=V, rate=o.gate_rate,
            step=o.gate_step, floor=o.gate_floor, bias=o.gate_bias,
            rounded=o.gate_precision == "bfloat16",
        )  # fmt: skip
        self.mixed = [o.query_heads * K, o.key_heads * K, o.value_heads * V]  # q, k, v
        gate_size = o.gate_heads * V if o.output_gate else 0
        self.parts = [sum(self.mixed), self.forget.inputs, gate_size]
        self.input = Linear(width, sum(self.parts))
        channels = self.parts[0]
        self.convolution = ShortConvolution(channels, o.convolution) if o.convolution else None
        self.state_weight = StateWeight(
            o.weight, o.weight_heads, V, start=o.weight_init, std=o.weight_std,
            constraint=o.weight_constraint, decay=o.weight_decay,
        )  # fmt: skip
        self.residual = nn.Parameter(torch.empty(self.heads, V)) if o.value_residual else None
        groups = {"whole": 1, "head": self.heads, "group": o.norm_groups, "none": 0}[o.norm]
        self.norm = GatedNorm(size, groups=groups, order=o.order, eps=o.norm_eps)
        self.output = Linear(size, width)

    @classmethod
    def complete(cls, options: Options, *, width: int) -> Options:
        require_positive(
            options, "key_dim", "value_dim", "norm_groups", "gate_floor", "norm_eps", *HEADS
        )
        require_not_negative(options, "convolution", "weight_std")
        require_range(options, "gate_rate", least=0)
        require_range(options, "gate_step", least=1e-12)
        require_range(options, "gate_bias")
        if options.gate == "state" and options.gate_precision == "bfloat16":
            raise ValueError(
                "gate_precision 'bfloat16' rounds f_t before the scan, but gate 'state' makes it "
                "there; use 'float32'"
            )
        check_state_weight(options.weight, options.weight_init, options.weight_constraint)
        if options.value_heads is None:
            unit = math.lcm(*(getattr(options, name) or 1 for name in HEADS))
            units = max(1, round(1.3125 * width / options.value_dim / unit))
            options = replace(options, value_heads=unit * units)
        N = head_count(options)
        left_out = {name: N for name in HEADS if getattr(options, name) is None}
        options = replace(options, **left_out)
        for name in HEADS:
            if N % getattr(options, name):
                count = getattr(options, name)
                raise ValueError(f"{name} {count} does not divide the largest head count, {N}")
        if options.norm == "group" and N % options.norm_groups:
            raise ValueError(f"norm_groups {options.norm_groups} does not divide the {N} heads")
        return options

    def forward(
        self, x: Tensor, state: State | None = None, *, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        o = self.options
        if state is None and reset is None and runs_whole(self, x):
            y, after = run_whole(self, x)
            return self.output(y), after
        q_BTNK, k_BTNK, v_BTNV, (forget, gate_weight), gate, after = self._inputs(x, state, reset)
        y_BTNV, after["state"] = self.scan(
            q_BTNK * o.key_dim**-0.5 if o.scale == "inverse_sqrt" else q_BTNK,
            k_BTNK, v_BTNV, forget, self.state_weight(), gate_weight,
            None if state is None else state["state"], reset,
        )  # fmt: skip
        value = residual = None
        if self.residual is not None:
            value, residual = self._spread(v_BTNV.flatten(2)), self.residual.flatten()
        gate = self._spread(gate) if o.output_gate else None
        y = self.norm(y_BTNV.flatten(2), gate, value=value, residual=residual)
        return self.output(y), after

    def _spread(self, x: Tensor) -> Tensor:
        """(B, T, heads V) -> (B, T, N V), head n from its group."""
        if x.shape[-1] == self.heads * self.options.value_dim:
            return x
        grouped = x.unflatten(-1, (-1, self.options.value_dim))
        return expand_heads(grouped, self.heads, 2).flatten(2)

    def uncompiled(self) -> tuple[str, ...]:
        return ("scan",)

    def scan(
        self, query: Tensor, key: Tensor, value: Tensor, forget: Tensor, weight: Tensor | None,
        gate_weight: Tensor | None, state: Tensor | None, reset: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The recurrence, by `m2rnn_scan`."""
        o = self.options
        return m2rnn_scan(
            query, key, value, forget, weight, state,
            gate_weight=gate_weight, nonlinearity=o.nonlinearity, write=o.write, clip=o.clip,
            reset=reset,
        )  # fmt: skip

    def _inputs(
        self, x: Tensor, state: State | None, reset: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor | None], Tensor, State]:
        """q, k, v by heads, the forget gate, the output gate, what the convolution carries."""
        o, after = self.options, {}
        qkv, a, gate = narrow_projection(x, self.input.weight).split(self.parts, dim=-1)
        if self.convolution is not None:
            qkv, after["convolution"] = self.convolution(
                qkv, None if state is None else state["convolution"], reset
            )
        q, k, v = qkv.split(self.mixed, dim=-1)
        q_BTNK, k_BTNK = (self._normalise(part.unflatten(-1, (-1, o.key_dim))) for part in (q, k))
        return q_BTNK, k_BTNK, v.unflatten(-1, (-1, o.value_dim)), self.forget(a), gate, after

    def drives(self, x: Tensor, state: State | None = None) -> Drives:
        _, k, v, (forget, gate_weight), _, _ = self._inputs(x, state, None)
        log_keep = None
        if gate_weight is None and self.options.gate != "none":
            log_keep = expand_heads(forget, self.heads, 2).log()
        inputs = {"f": forget[..., None], "k": k, "v": v}
        return Drives(log_keep=log_keep, memory="lower", inputs=inputs)

    def _normalise(self, x: Tensor) -> Tensor:
        match self.options.qk_norm:
            case "l2":
                return l2_norm(x)
            case "rms":
                return rms_norm(x, None, NORM_EPS)
        return x

    def initial_state(
        self, batch: int, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> State:
        shape = (batch, self.heads, self.options.key_dim, self.options.value_dim)
        state = {"state": torch.zeros(shape, device=device, dtype=dtype)}
        if self.convolution is not None:
            state["convolution"] = self.convolution.initial_state(batch, device, dtype)
        return state

    def declared_parameters(self) -> dict[str, Parameter]:
        one = Parameter(Constant(1.0), decay=False)
        declared = {
            "input.weight": self.projection(),
            "output.weight": self.output_projection(),
            **prefixed("forget", self.forget.declared_parameters(self.initial_std)),
            **prefixed("state_weight", self.state_weight.declared_parameters()),
        }
        if self.convolution is not None:
            declared["convolution.weight"] = self.projection()
        if self.residual is not None:
            declared["residual"] = one
        if self.norm.weight is not None:
            declared["norm.weight"] = one
        return declared

    def cost(self, length: int) -> Cost:
        o, D, N = self.options, self.width, self.heads
        K, V, channels = o.key_dim, o.value_dim, self.parts[0]
        weight = {"dense": V * V, "diagonal": V, "identity": 0}[o.weight]
        gate = {"softplus_decay": 2, "constant": 2, "sigmoid": 1, "state": 1, "none": 0}[o.gate]
        return Cost(
            parameters=D * (sum(self.parts) + N * V)
            + o.convolution * channels
            + o.weight_heads * weight
            + o.forget_heads * gate
            + N * V * (o.value_residual + (o.norm != "none") + (o.gate == "state")),
            state_elements=N * K * V,
            convolution_elements=max(o.convolution - 1, 0) * channels,
            forward_flops_per_token=linear_flops(D, sum(self.parts))
            + linear_flops(N * V, D)
            + 2 * o.convolution * channels
            + N * recurrence_flops(o),
        )


HEADS = (
    "query_heads", "key_heads", "value_heads", "forget_heads", "gate_heads", "weight_heads"
)  # fmt: skip


def head_count(options: M2RNN.Options) -> int:
    """N: the largest of the head counts given."""
    return max(getattr(options, name) or 1 for name in HEADS)


def recurrence_flops(options: M2RNN.Options) -> int:
    """Of one token and head: 2 K V² + 7 K V for the published layer (evaluation.md §6.2).

    The 7 are k vᵀ (1) and its sum with H W (1), the gate's f H + (1 - f) Z (3), and Hᵀ q (2); φ is
    not counted.
    """
    K, V = options.key_dim, options.value_dim
    mixing = {"dense": 2 * K * V * V, "diagonal": K * V, "identity": 0}[options.weight]
    recall = 2 * K * V + V if options.write == "delta" else 0
    state_gate = 2 * K * V if options.gate == "state" else 0
    return mixing + 7 * K * V + recall + state_gate
