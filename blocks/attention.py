"""Softmax attention with grouped heads, a sliding window, and rotary positions or none."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from blocks.base import Cost, SequenceMixer, State
from blocks.initialisation import Parameter
from blocks.linear import Linear, linear_flops
from blocks.options import option, require_not_negative, require_positive
from kernels.attention import causal_attention, flex_is_asked_for


class Attention(SequenceMixer):
    """y_t = softmax over j <= t of (q_t·k_j / sqrt(K)) v_j, by heads.

    Its state is the keys and values of the current window ("key", "value": (B, P, Nk, K)), and two
    counts a sequence: the tokens seen so far and where the current document began.
    """

    summary = "softmax attention: grouped heads, full or in a sliding window, RoPE or no positions"
    kernels = ("attention",)

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Options:
        heads: int | None = option(None, "query heads N; by default width / 64, at least 4")
        key_heads: int | None = option(
            None, "heads of k and v, dividing N (grouped-query attention); by default N"
        )
        head_dim: int | None = option(None, "K; by default width / N")
        position: Literal["none", "rope"] = option(
            "none", "none (NoPE), or rope: rotate q and k by their position (arXiv 2104.09864)"
        )
        rope_base: float = option(1e4, "θ: pair i turns by t θ^(-2 i / K)")
        window: int = option(0, "see this many latest tokens, itself included; 0: all")

    def __init__(self, options: Options, *, width: int, depth: int) -> None:
        super().__init__(options, width=width, depth=depth)
        o = self.options
        self.query_size, self.key_size = o.heads * o.head_dim, o.key_heads * o.head_dim
        self.input = Linear(width, self.query_size + 2 * self.key_size)  # q, k, v
        self.output = Linear(self.query_size, width)

    @classmethod
    def complete(cls, options: Options, *, width: int) -> Options:
        require_positive(options, "heads", "key_heads", "head_dim", "rope_base")
        require_not_negative(options, "window")
        heads = options.heads or max(min(4, width), width // 64)
        key_heads, head_dim = options.key_heads or heads, options.head_dim or width // heads
        if heads % key_heads:
            raise ValueError(f"key_heads {key_heads} does not divide heads {heads}")
        if options.head_dim is None and width % heads:
            raise ValueError(f"heads {heads} does not divide the width {width}; give head_dim")
        if options.position == "rope" and head_dim % 2:
            raise ValueError(f"head_dim {head_dim} is odd; rope turns pairs")
        return replace(options, heads=heads, key_heads=key_heads, head_dim=head_dim)

    def forward(
        self, x: Tensor, state: State | None = None, *, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        o, (B, T, _) = self.options, x.shape
        plain = state is None and reset is None and not o.window
        if state is None:
            state = self.initial_state(B, device=x.device, dtype=x.dtype)
        q, k, v = self.input(x).split([self.query_size, self.key_size, self.key_size], dim=-1)
        q_BTNK, k_BTNK, v_BTNK = (part.unflatten(-1, (-1, o.head_dim)) for part in (q, k, v))
        position = state["position"][:, None] + torch.arange(T, device=x.device)  # (B, T)
        if o.position == "rope":
            q_BTNK, k_BTNK = (rotate(part, position, o.rope_base) for part in (q_BTNK, k_BTNK))
        keys = torch.cat([state["key"].to(k_BTNK.dtype), k_BTNK], dim=1)
        values = torch.cat([state["value"].to(v_BTNK.dtype), v_BTNK], dim=1)
        start = _document_starts(position, state["start"], reset)
        if plain and not flex_is_asked_for():
            y = causal_attention(q_BTNK, keys, values)
        else:
            begins = reset is not None or keys.shape[1] > T
            first = start - position[:, -1:] + keys.shape[1] - 1 if begins else None
            y = self._attend_masked(q_BTNK, keys, values, first)
        kept = slice(max(keys.shape[1] - o.window + 1, 0), None) if o.window else slice(None)
        after = {
            "key": keys[:, kept], "value": values[:, kept],
            "position": state["position"] + T, "start": start[:, -1],
        }  # fmt: skip
        return self.output(y.flatten(2)), after

    def _attend_masked(self, q: Tensor, k: Tensor, v: Tensor, first: Tensor | None) -> Tensor:
        return causal_attention(q, k, v, first=first, window=self.options.window)

    def uncompiled(self) -> tuple[str, ...]:
        return ("_attend_masked",)  # which may compile a kernel for its mask

    def initial_state(
        self, batch: int, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> State:
        o = self.options
        empty = torch.zeros(batch, 0, o.key_heads, o.head_dim, device=device, dtype=dtype)
        zero = torch.zeros(batch, dtype=torch.int64, device=device)
        return {"key": empty, "value": empty, "position": zero, "start": zero}

    def declared_parameters(self) -> dict[str, Parameter]:
        return {"input.weight": self.projection(), "output.weight": self.output_projection()}

    def cost(self, length: int) -> Cost:
        o, D = self.options, self.width
        inputs, window = self.query_size + 2 * self.key_size, min(o.window, length) or length
        # query t sees min(t, window) keys: window (window + 1) / 2 pairs, then window a token
        pairs = window * (window + 1) / 2 + (length - window) * window
        cached = 2 * self.key_size
        return Cost(
            parameters=D * (inputs + self.query_size),
            state_elements=(o.window - 1) * cached if o.window else 0,
            state_elements_per_token=0 if o.window else cached,
            forward_flops_per_token=linear_flops(D, inputs)
            + linear_flops(self.query_size, D)
            + 4 * self.query_size * pairs / length,
        )


def _document_starts(position: Tensor, start: Tensor, reset: Tensor | None) -> Tensor:
    """(B, T): the position at which each token's document began, `start` (B,) if before these."""
    if reset is None:
        return start[:, None].expand_as(position)
    begun = torch.where(reset, position, start[:, None])
    return begun.cummax(dim=1).values


def rotate(x: Tensor, position: Tensor, base: float) -> Tensor:
    """Rotary embedding: turn the pair (x_i, x_{i + K/2}) by position · base^(-2 i / K).

    Args:
        x: (B, T, N, K).   position: (B, T).
    """
    half = x.shape[-1] // 2
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    rates = base ** (-torch.arange(half, device=x.device, dtype=torch.float64) / half)
    angle = (position[..., None] * rates).to(wide)[:, :, None]  # (B, T, 1, K / 2)
    first, second = x[..., :half], x[..., half:]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1).to(x.dtype)
