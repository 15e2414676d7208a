"""Times choices that the fast M²RNN kernels leave open, and what surrounds the scan in a layer.

Run by `python -m kernels.bench --variants --around`. Each variant is first held to float64, and
all are timed in turn in one process; every number is a line of JSON.
"""

import json
from collections.abc import Callable
from typing import Any

import torch

from kernels.bench import SHAPES, changed, check, environment, median_ms, scan_runs
from kernels.convolution import causal_convolution
from kernels.gated_norm.in_one import gate_norm
from kernels.m2rnn import fast_scan
from kernels.m2rnn.layer import Widths, m2rnn_layer
from kernels.m2rnn.triton_gate import decay_gate

ROUNDS = 3
LAYER = Widths(query_heads=1, key_heads=1, heads=84, K=64, V=16, forget_heads=84)  # 410M, shape A


def _forward(rows: tuple[int, ...] = (16, 32), **choices: object) -> dict[str, Any]:
    """fast_scan's forward with other choices for these rows of a tile."""
    forms = {r: {**form, **(choices if r in rows else {})} for r, form in fast_scan.FORWARD.items()}
    return {"FORWARD": forms}


VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "tiles' shares in float32": {"TILE_SHARE": torch.float32},
    "segments twice as long": {"PARTIAL_BYTES": 160 * 2**20},
    "sums beside the next scan": {"BESIDE": True, "PARTIAL_BYTES": 128 * 2**20},
    "32 rows: loads four steps ahead": _forward((32,), AHEAD=4),
    "32 rows: asks no cache": _forward((32,), LEVEL=0),
    "32 rows: asks the second-level cache": _forward((32,), LEVEL=2),
    "32 rows: four steps ahead, no cache": _forward((32,), AHEAD=4, LEVEL=0),
    "32 rows: k vᵀ added": _forward((32,), CHAINED=False),
    "16 rows: asks no cache": _forward((16,), LEVEL=0),
    "16 rows: asks the first-level cache": _forward((16,), LEVEL=1),
    "16 rows: four steps' k vᵀ, chained": _forward((16,), FOUR=True, CHAINED=True),
    "y eight steps at once": _forward(LATE=True),
}


def print_variants(repeats: int) -> None:
    """Median ms of each variant at each shape, forward, and forward and backward.

    A variant that is wrong by float64, or does not compile, says so and is not timed.
    """
    print(json.dumps(environment()), flush=True)
    right: dict[str, dict[str, Any]] = {}
    for variant, values in VARIANTS.items():
        try:
            with changed(fast_scan, **values):
                found: object = max(check().values())
            right[variant] = values
        except Exception as error:  # the compiler's own errors have no common kind
            found = (str(error).splitlines() or [repr(error)])[0]
        print(json.dumps({"variant": variant, "worst error": found}), flush=True)
    for name, shape in SHAPES.items():
        forward, both = scan_runs(shape)
        for number in range(1, ROUNDS + 1):
            for variant, values in right.items():
                with changed(fast_scan, **values):
                    _print(forward, both, repeats, shape=name, round=number, variant=variant)


def _print(
    forward: Callable[[], object], both: Callable[[], object], repeats: int, **what: object
) -> None:
    times = {"forward_ms": median_ms(forward, repeats)[0], "both_ms": median_ms(both, repeats)[0]}
    print(json.dumps({**what, **{k: round(ms, 3) for k, ms in times.items()}}), flush=True)


def print_around(repeats: int) -> None:
    """Median ms of each piece of a 410M layer at shape A, bfloat16, in turn; pieces not installed
    say so."""
    pieces = _pieces()
    for number in range(1, ROUNDS + 1):
        for piece, (run, leaves) in pieces.items():
            try:
                grad = torch.randn_like(run())
            except Exception as error:  # an optional library that is not there, or not right here
                said = (str(error).splitlines() or [""])[0]
                print(json.dumps({"piece": piece, "round": number, "error": said}), flush=True)
                continue

            def both(run=run, leaves=leaves, grad=grad) -> object:
                return torch.autograd.grad(run(), leaves, grad)

            _print(run, both, repeats, piece=piece, round=number)


def _pieces() -> dict[str, tuple[Callable[[], torch.Tensor], list[torch.Tensor]]]:
    """By name: what to run, and what to differentiate by."""
    B, T = SHAPES["A"].B, SHAPES["A"].T
    channels, N, V, S = sum(LAYER.channels), LAYER.heads, LAYER.V, LAYER.heads * LAYER.V

    def leaf(*size: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
        return (scale * torch.randn(size, device="cuda")).to(dtype).requires_grad_()

    projected = leaf(B, T, sum(LAYER.parts), dtype=torch.bfloat16)
    taps, rate, bias = leaf(channels, 4, scale=0.5), leaf(N, scale=0.3), leaf(N)
    weight, residual, norm = leaf(N, V, V, scale=0.1), leaf(N, V), leaf(S)
    y, value = leaf(B, T, S, dtype=torch.bfloat16), leaf(B, T, S, dtype=torch.bfloat16)
    parts = projected.split(LAYER.parts, dim=-1)

    def convolved(backend: Any) -> torch.Tensor:
        return causal_convolution(parts[0], taps, silu=True, backend=backend)[0]

    def layer() -> torch.Tensor:
        return m2rnn_layer(
            projected, taps, rate, bias, weight, residual, norm, widths=LAYER, nonlinearity="tanh",
            clip="carry", eps=1e-5,
        )[0]  # fmt: skip

    def normed() -> torch.Tensor:
        return gate_norm(y, value, residual.flatten(), parts[1], norm, 1e-5)

    def gate() -> torch.Tensor:
        decay = torch.nn.functional.softplus(parts[2].float() + bias)
        return torch.exp(-rate.exp() * decay)

    of_norm = [y, value, residual, projected, norm]
    with torch.no_grad():
        decay_gate(parts[2], rate, bias)
    return {
        **{
            f"convolution, {backend}": (lambda b=backend: convolved(b), [projected, taps])
            for backend in ("torch", "fla", "causal_conv1d", "triton")
        },
        "residual, gate and norm": (normed, of_norm),
        "forget gate in torch": (gate, [projected, rate, bias]),
        "layer as one operator": (layer, [projected, taps, rate, bias, weight, residual, norm]),
    }
