"""Gated DeltaNet (arXiv 2412.06464), as the M²RNN paper compares it (m2rnn.md §2.3)."""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from blocks.base import Cost, Drives, State
from blocks.convolution import ShortConvolution
from blocks.decay_gate import SoftplusDecay, prefixed
from blocks.gated_norm import EPS_HELP, NORM_EPS, GatedNorm, Order
from blocks.initialisation import Constant, Parameter
from blocks.linear import Linear, linear_flops, narrow_projection
from blocks.linear_state import Inputs, LinearState
from blocks.options import option, require_not_negative, require_positive
from kernels.backends import backends_used
from kernels.decay import padded_length
from kernels.gated_delta import gated_delta_product, pulled_back
from kernels.gated_delta.chunked import CHUNK
from kernels.normalisation import l2_norm


class GatedDeltaNet(LinearState):
    """S_t = a_t (I - b_t k_t k_tᵀ) S_{t-1} + b_t k_t v_tᵀ;  y_t = S_tᵀ q_t / sqrt(K)."""

    summary = "Gated DeltaNet: a linear matrix state that is decayed and corrected"
    kernels = ("gated_delta", "convolution")

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Options:
        key_heads: int | None = option(
            None, "heads of q and k, dividing value_heads; by default width / 512, at least 2"
        )
        value_heads: int | None = option(None, "N, heads of v and of the state; by default as q")
        key_dim: int | None = option(None, "K; by default key_heads K is half the width")
        value_dim: int | None = option(None, "V; by default 2 K")
        convolution: int = option(
            4, "taps of the causal depthwise convolution with SiLU on q, k, v; 0: neither"
        )
        output_gate: bool = option(True, "multiply the output by SiLU(g), g a projection of x")
        order: Order = option(
            "gate_norm", "gate_norm: RMS(y ⊙ SiLU(g)) (published);  norm_gate: RMS(y) ⊙ SiLU(g)"
        )
        norm_eps: float = option(NORM_EPS, EPS_HELP)
        negative_eigenvalues: bool = option(
            False, "b_t = 2 σ(.) in place of σ(.), so that I - b k kᵀ may reflect"
        )

    def __init__(self, options: Any, *, width: int, depth: int) -> None:
        super().__init__(options, width=width, depth=depth)
        o = self.options
        self.key_size, self.value_size = o.key_heads * o.key_dim, o.value_heads * o.value_dim
        n = self.householders
        self.mixed = [self.key_size, n * self.key_size, n * self.value_size]  # q, k, v
        channels = sum(self.mixed)
        self.input = Linear(width, channels)
        self.gate_size = (1 + n) * o.value_heads + (self.value_size if o.output_gate else 0)
        self.gates = Linear(width, self.gate_size)  # a, b, output gate
        self.convolution = ShortConvolution(channels, o.convolution) if o.convolution else None
        self.decay = SoftplusDecay(o.value_heads)
        self.norm = GatedNorm(
            self.value_size, groups=o.value_heads, shared=True, order=o.order, eps=o.norm_eps
        )
        self.output = Linear(self.value_size, width)

    @property
    def householders(self) -> int:
        """n: the corrections a token."""
        return 1

    @classmethod
    def complete(cls, options: Any, *, width: int) -> Any:
        require_positive(options, "key_heads", "value_heads", "key_dim", "value_dim", "norm_eps")
        require_not_negative(options, "convolution")
        key_heads = options.key_heads or min(max(2, width // 512), options.value_heads or width)
        value_heads = options.value_heads or key_heads
        if value_heads % key_heads:
            raise ValueError(f"key_heads {key_heads} does not divide value_heads {value_heads}")
        key_dim = options.key_dim or max(1, width // (2 * key_heads))
        value_dim = options.value_dim or 2 * key_dim
        return replace(
            options, key_heads=key_heads, value_heads=value_heads,
            key_dim=key_dim, value_dim=value_dim,
        )  # fmt: skip

    def forward(
        self, x: Tensor, state: State | None = None, *, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        inputs, gate, after = self._inputs(x, state, reset)
        y_BTNV, carried = self.recur(inputs, state, reset)
        y = self.norm(y_BTNV.flatten(2), gate if self.options.output_gate else None)
        return self.output(y), after | carried

    def _inputs(
        self, x: Tensor, state: State | None, reset: Tensor | None
    ) -> tuple[Inputs, Tensor, State]:
        """What the scan reads, the output gate, and what the convolution carries."""
        o, after = self.options, {}
        qkv, ab, gate = self._project(x)
        key_size, n_key_size, value_size = self.mixed
        sizes = [key_size + n_key_size, value_size]
        if self.convolution is None:
            qk, v = qkv.split(sizes, dim=-1)
        else:
            before = None if state is None else state["convolution"]
            (qk, v), after["convolution"] = self.convolution.in_parts(qkv, before, reset, sizes)
        q, k = qk.split([key_size, n_key_size], dim=-1)
        n, N, repeats = self.householders, o.value_heads, o.value_heads // o.key_heads
        q_BTNK = l2_norm(q.unflatten(-1, (o.key_heads, -1)))
        k_BTnNK = l2_norm(k.unflatten(-1, (n, o.key_heads, -1)))
        if repeats > 1:
            q_BTNK = q_BTNK.repeat_interleave(repeats, dim=2)
            k_BTnNK = k_BTnNK.repeat_interleave(repeats, dim=3)
        a, b = ab.tensor_split([N], dim=-1)
        beta = torch.sigmoid(b.unflatten(-1, (n, N)))
        inputs = {
            "query": q_BTNK * o.key_dim**-0.5,
            "key": k_BTnNK,
            "value": v.unflatten(-1, (n, N, -1)),
            "log_decay": self.decay(a),
            "beta": beta * 2 if o.negative_eigenvalues else beta,
        }
        return inputs, gate, after

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v; a and b; the output gate. On a GPU odd row lengths would be slow."""
        few = (1 + self.householders) * self.options.value_heads
        if not x.is_cuda:
            return self.input(x), *self.gates(x).tensor_split([few], dim=-1)
        weight = self.gates.weight
        return self.input(x), narrow_projection(x, weight[:few]), F.linear(x, weight[few:])

    def uncompiled(self) -> tuple[str, ...]:
        # fla's is an operator that a compiled graph holds; our own is a loop over chunks
        return () if "fla" in backends_used().get("gated_delta", ()) else ("scan",)

    def scan(
        self, inputs: Inputs, state: State | None, reset: Tensor | None
    ) -> tuple[Tensor, State]:
        y, last = gated_delta_product(
            inputs["query"], inputs["key"], inputs["value"], inputs["log_decay"], inputs["beta"],
            None if state is None else state["state"], reset=reset,
        )  # fmt: skip
        return y, {"state": last}

    def pull_back(self, inputs: Inputs, steps: int) -> Tensor:
        return pulled_back(
            inputs["query"], inputs["key"], inputs["log_decay"], inputs["beta"], steps=steps
        )

    def drives(self, x: Tensor, state: State | None = None) -> Drives:
        inputs, _, _ = self._inputs(x, state, None)
        shown = {"b": inputs["beta"][..., None], "k": inputs["key"], "v": inputs["value"]}
        shown = {name: part.transpose(2, 3).flatten(3) for name, part in shown.items()}
        # A reflection (b up to 2) keeps a norm, so the decay still bounds what is left.
        return Drives(log_keep=inputs["log_decay"], memory="upper", inputs=shown)

    def initial_state(
        self, batch: int, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> State:
        o = self.options
        shape = (batch, o.value_heads, o.key_dim, o.value_dim)
        state = {"state": torch.zeros(shape, device=device, dtype=dtype)}
        if self.convolution is not None:
            state["convolution"] = self.convolution.initial_state(batch, device, dtype)
        return state

    def declared_parameters(self) -> dict[str, Parameter]:
        declared = {
            "input.weight": self.projection(),
            "gates.weight": self.projection(),
            **prefixed("decay", self.decay.declared_parameters()),
            "norm.weight": Parameter(Constant(1.0), decay=False),
            "output.weight": self.output_projection(),
        }
        if self.convolution is not None:
            declared["convolution.weight"] = self.projection()
        return declared

    def cost(self, length: int) -> Cost:
        o, D, N = self.options, self.width, self.options.value_heads
        n, channels, gates, taps = self.householders, sum(self.mixed), self.gate_size, o.convolution
        corrections = padded_length(n * length, CHUNK) / length  # a token
        return Cost(
            parameters=D * (channels + gates + self.value_size)
            + taps * channels
            + 2 * N
            + o.value_dim,
            state_elements=N * o.key_dim * o.value_dim,
            convolution_elements=max(taps - 1, 0) * channels,
            forward_flops_per_token=linear_flops(D, channels + gates + self.value_size)
            + 2 * taps * channels
            + corrections * N * chunked_delta_flops(o.key_dim, o.value_dim, min(CHUNK, n * length)),
        )


def chunked_delta_flops(K: int, V: int, C: int) -> float:
    """Of one correction and head in chunks of C steps.

    4 C K for the scores q·k and k·k, C (K + V) for the triangular solve, 2 C V for the scores'
    product with what was written, 6 K V for the three products with the carried state.
    """
    return 2 * C * 2 * K + C * (K + V) + 2 * C * V + 6 * K * V
