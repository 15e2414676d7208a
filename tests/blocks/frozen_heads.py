"""How many heads of the published M²RNN are frozen at their start by a gate and state in bfloat16?

    python tests/blocks/frozen_heads.py          (about a minute on one core)

A head is frozen where f rounds to 1: the weight 1 - f of what is written is then 0, and its state
stays what it was, zero. Rounding to bfloat16 does that from f = 1 - 2⁻⁹ on (ties to even). A state
in bfloat16 stands still, too, where a step would move it by less than half of its last place.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from blocks.decay_gate import DT_RANGE, SoftplusDecay
from blocks.initialisation import named_generator
from blocks.m2rnn import M2RNN
from blocks.registry import build, resolve_options

WIDTH, DEPTH, HEADS, TOKENS = 1024, 24, 84, 4096  # the published 410 M models
LARGEST_BELOW_ONE = 1 - 2**-9  # from here on f rounds to 1


def expected_share() -> float:
    """P(A dt <= -log(1 - 2⁻⁹)) for A ~ U(0, 16), dt log-uniform on [1e-3, 1e-1]: at a = 0."""
    bound, (low, high) = -math.log(LARGEST_BELOW_ONE), DT_RANGE
    assert bound / low < 16
    return bound / 16 * (1 / low - 1 / high) / math.log(high / low)


def decay_at_start(heads: int, seed: int) -> SoftplusDecay:
    """The gate's A and dt, drawn as the block declares them."""
    decay = SoftplusDecay(heads)
    with torch.no_grad():
        for name, declared in decay.declared_parameters().items():
            parameter = decay.get_parameter(name)
            generator = named_generator(seed, name, parameter.shape)
            parameter.copy_(declared.start.sample(parameter.shape, generator))
    return decay


def frozen_shares(seeds: int, *, tokens: int = 64, heads: int = HEADS) -> dict[str, float]:
    """Shares of heads, over so many draws of one layer.

    at zero: f(a = 0) rounds to 1.   of tokens: (head, token) pairs with a ~ N(0, 0.64²), as a
    projection of std 0.02 makes it of a normalised input.   throughout: heads frozen at every one
    of `tokens` such tokens.   float32: (head, token) pairs whose f is 1 in float32.
    """
    counts = dict.fromkeys(("at zero", "of tokens", "throughout", "float32"), 0.0)
    with torch.no_grad():
        for seed in range(seeds):
            decay = decay_at_start(heads, seed)
            generator = torch.Generator().manual_seed(seed)
            a = torch.randn(1, tokens, heads, generator=generator) * 0.02 * math.sqrt(WIDTH)
            f, still = decay(a).exp(), decay(torch.zeros(1, 1, heads)).exp()
            rounded = f.bfloat16() == 1
            counts["at zero"] += (still.bfloat16() == 1).float().mean().item()
            counts["of tokens"] += rounded.float().mean().item()
            counts["throughout"] += rounded.all(dim=1).float().mean().item()
            counts["float32"] += (f == 1).float().mean().item()
    return {name: count / seeds for name, count in counts.items()}


def published_layer(seed: int) -> M2RNN:
    """One layer of the 410 M model at its start."""
    options = resolve_options("m2rnn", {"value_heads": HEADS}, width=WIDTH)
    layer = build("m2rnn", options, width=WIDTH, depth=DEPTH)
    assert isinstance(layer, M2RNN)
    with torch.no_grad():
        for name, declared in layer.declared_parameters().items():
            parameter = layer.get_parameter(name)
            generator = named_generator(seed, name, parameter.shape)
            parameter.copy_(declared.start.sample(parameter.shape, generator))
    return layer


@dataclass(frozen=True, kw_only=True, slots=True)
class Stillness:
    """Of the states' elements after `tokens` tokens from zero, by precision of gate and state.

    never: heads with no element that ever moved.   still: (element, step) pairs in which a state
    did not move.   error: of the last state against float64, |difference| / |state|, each head's.
    """

    never: float
    still: float
    error: Tensor


@torch.no_grad()
def run_states(seed: int, *, gate: torch.dtype, state: torch.dtype, tokens: int) -> Stillness:
    """The published recurrence at its start (W the identity), each operation rounded to `state`.

    That is how the published kernel holds H, Z and 1 - f, with sums of products in float32.
    """
    layer = published_layer(seed)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, tokens, WIDTH, generator=generator)
    _, k, v, (forget, _), _, _ = layer._inputs(x, None, None)
    f_BTN, k_TK, v_TNV = forget.to(gate), k[0, :, 0], v[0]
    exact = torch.zeros(HEADS, k.shape[-1], v.shape[-1], dtype=torch.float64)
    h, still, moved = exact.to(state), 0, torch.zeros(HEADS, dtype=torch.bool)
    for t in range(tokens):
        outer = k_TK[t, None, :, None] * v_TNV[t, :, None, :]
        f = f_BTN[0, t].to(state)[:, None, None]
        z = torch.tanh((h.float() + outer).to(state))
        new = (f * h).to(state) + ((1 - f) * z).to(state)
        same = new == h
        still += int(same.sum())
        moved |= ~same.flatten(1).all(dim=1)
        h = new
        wide = forget[0, t].double()[:, None, None]
        exact = wide * exact + (1 - wide) * torch.tanh(exact + outer.double())
    error = (h.double() - exact).flatten(1).norm(dim=1) / exact.flatten(1).norm(dim=1)
    return Stillness(
        never=(~moved).float().mean().item(), still=still / (tokens * h.numel()), error=error
    )


def main() -> None:
    shares = frozen_shares(2_000)
    print(f"f(0) rounds to 1, by arithmetic: {100 * expected_share():.3f} % of heads")
    for name, share in shares.items():
        print(f"{name}: {100 * share:.3f} %, {share * HEADS:.2f} of {HEADS} heads a layer")
    half, single = torch.bfloat16, torch.float32
    for gate, state in ((half, half), (half, single), (single, half), (single, single)):
        found = run_states(0, gate=gate, state=state, tokens=TOKENS)
        shares = torch.tensor([0.25, 0.5, 0.75, 1.0], dtype=torch.float64)
        errors = ", ".join(f"{100 * error:.2g} %" for error in found.error.quantile(shares))
        print(
            f"gate {gate}, state {state}, {TOKENS} tokens: {100 * found.never:.2f} % of heads "
            f"never written, {100 * found.still:.1f} % of steps without a move, error of the last "
            f"state (quartiles, largest) {errors}"
        )


if __name__ == "__main__":
    main()
