"""What the M²RNN kernels cost on this GPU: time, memory and error at the shapes of the issue.

    python -m kernels.bench [--repeats 15] [--variants] [--around]

`rows()` first runs the kernels against float64 and refuses to time what is wrong. --variants times
the choices that the fast kernels leave open beside each other, --around what surrounds the scan in
a layer (both in `bench_variants`).
"""

import argparse
import itertools
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import triton

from kernels.m2rnn import fast_scan
from kernels.m2rnn.checking import Case, Shape, errors, make_case
from kernels.m2rnn.scan import m2rnn_scan
from kernels.rnn import gru_scan, lstm_scan, rnn_scan

SHAPES = {
    "A": Shape(B=8, T=4096, N=84, K=64, V=16),
    "B": Shape(B=1, T=16384, N=132, K=64, V=16),
    "C": Shape(B=1, T=4096, N=84, K=64, V=16),
}
LIMITS = {"output": 4e-3, "last_state": 4e-3}
GRADIENT_LIMIT = 1.5e-2
TANH_PER_SECOND_AND_SM = 16 * 1.98e9  # MUFU.TANH on Hopper at its boost clock


class WrongKernel(RuntimeError):  # noqa: N818 - what it says, not an error's kind
    """A kernel's error against float64 is over its limit; nothing was timed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the table; times are medians, spreads are half the quartile distance."""

    kernel: str
    shape: str
    forward_ms: float
    forward_spread_ms: float
    both_ms: float
    both_spread_ms: float
    extra_gib: float
    floor_ms: float | None
    worst_error: float | None


def environment() -> dict[str, str]:
    """What the numbers hold for."""
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


def check() -> dict[str, float]:
    """Errors at short lengths, by quantity, the worst over tiles, clipping and kinds of input.

    Raises:
        WrongKernel: an error is over its limit.
    """
    worst: dict[str, float] = {}
    for wide, kind, clip in itertools.product(
        (False, True), ("normal", "initial", "slow"), ("none", "carry")
    ):
        shape = Shape(B=2, T=336 if wide else 333, N=6, K=64, V=16)
        case = make_case(shape, device="cuda", kind=kind, clip=clip)
        with changed(fast_scan, WARPS=0 if wide else fast_scan.WARPS):
            found = errors(case)
        for name, error in found.items():
            worst[name] = max(worst.get(name, 0.0), error)
            if not error <= LIMITS.get(name, GRADIENT_LIMIT):
                rows = 32 if wide else 16
                raise WrongKernel(
                    f"{name} is off by {error:.1e} ({kind}, clip {clip}, {rows} rows)"
                )
    return worst


@contextmanager
def changed(module: ModuleType, **values: object) -> Iterator[None]:
    """Its global values are these for as long as the context lasts."""
    before = {name: getattr(module, name) for name in values}
    try:
        for name, value in values.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def rows(repeats: int = 15) -> list[Row]:
    """The scan at shapes A, B and C, and the vector cells at A's batch and length."""
    worst = max(check().values())
    table = [_scan_row(name, shape, repeats, worst) for name, shape in SHAPES.items()]
    return table + [_cell_row(name, repeats) for name in ("rnn", "gru", "lstm", "cudnn_gru")]


def median_ms(run: Callable[[], object], repeats: int) -> tuple[float, float]:
    for _ in range(3):
        run()
    # the host runs ahead, as in training: it is waited for once, at the end
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    for mark in marks[:-1]:
        mark.record()
        run()
    marks[-1].record()
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
    low, middle, high = statistics.quantiles(times, n=4)
    return middle, (high - low) / 2


def scan_runs(shape: Shape) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The scan at a shape, forward, and forward and backward."""
    case = make_case(shape, device="cuda", clip="carry", state=False)
    leaves: dict[str, Any] = {
        n: x.requires_grad_() for n, x in case.tensors.items() if x is not None
    }

    def forward():
        return m2rnn_scan(**leaves, clip="carry", backend="triton")

    def both():
        return torch.autograd.grad(forward(), list(leaves.values()), _grads(case))

    return forward, both


def _scan_row(name: str, shape: Shape, repeats: int, worst: float) -> Row:
    forward, both = scan_runs(shape)
    forward_ms, forward_spread = median_ms(forward, repeats)
    both_ms, both_spread = median_ms(both, repeats)
    elements = shape.B * shape.T * shape.N * shape.K * shape.V
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    return Row(
        kernel="m2rnn",
        shape=f"{name}: B {shape.B}, T {shape.T}, N {shape.N}, K {shape.K}, V {shape.V}",
        forward_ms=forward_ms,
        forward_spread_ms=forward_spread,
        both_ms=both_ms,
        both_spread_ms=both_spread,
        extra_gib=_extra_memory(forward, both) / 2**30,
        floor_ms=1e3 * elements / (TANH_PER_SECOND_AND_SM * processors),
        worst_error=worst,
    )


def _grads(case: Case) -> list[torch.Tensor]:
    return [case.grad_output, case.grad_last]


def _extra_memory(forward: Callable, both: Callable) -> int:
    """Bytes at the peak of forward and backward, less outputs and gradients."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.no_grad():
        kept = sum(x.nbytes for x in forward())
    grads = both()
    torch.cuda.synchronize()
    kept += sum(x.nbytes for x in grads)
    return torch.cuda.max_memory_allocated() - before - kept


def _cell_row(name: str, repeats: int, B: int = 8, T: int = 4096, N: int = 85, V: int = 16) -> Row:
    def leaf(*size: int, scale: float = 1.0) -> torch.Tensor:
        return (scale * torch.randn(*size, device="cuda")).bfloat16().requires_grad_()

    module = torch.nn.GRU(V, V, batch_first=True, device="cuda", dtype=torch.bfloat16)
    if name == "cudnn_gru":  # cuDNN knows no heads: they stand in its batch, with one weight
        leaves = [leaf(B * N, T, V), *module.parameters()]
    else:
        wide = 4 * V if name == "lstm" else V
        many = 3 if name == "gru" else 1
        leaves = [leaf(B, T, N, wide) for _ in range(many)]
        leaves += [leaf(N, V, wide, scale=0.1) for _ in range(many)]

    def forward() -> torch.Tensor:
        if name == "cudnn_gru":
            return module(leaves[0])[0]
        scan = {"rnn": rnn_scan, "gru": gru_scan, "lstm": lstm_scan}[name]
        return scan(*leaves, clip="carry", backend="triton")[0]

    grad = torch.randn_like(forward())

    def both():
        return torch.autograd.grad(forward(), leaves, grad)

    forward_ms, forward_spread = median_ms(forward, repeats)
    both_ms, both_spread = median_ms(both, repeats)
    return Row(
        kernel=name,
        shape=f"B {B}, T {T}, N {N}, V {V}",
        forward_ms=forward_ms,
        forward_spread_ms=forward_spread,
        both_ms=both_ms,
        both_spread_ms=both_spread,
        extra_gib=_extra_memory(lambda: [forward()], both) / 2**30,
        floor_ms=None,
        worst_error=None,
    )


def markdown(table: list[Row]) -> str:
    """The table, with what it holds for."""
    where = ", ".join(f"{k} {v}" for k, v in environment().items())
    lines = [
        f"{where}; bfloat16, medians, half the quartile distance behind ±.",
        "",
        "| kernel | shape | forward ms | forward and backward ms | extra GiB | tanh floor ms "
        "| worst error |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in table:
        floor = "" if row.floor_ms is None else f"{row.floor_ms:.2f}"
        error = "" if row.worst_error is None else f"{row.worst_error:.1e}"
        lines.append(
            f"| {row.kernel} | {row.shape} | {row.forward_ms:.2f} ± {row.forward_spread_ms:.2f} "
            f"| {row.both_ms:.2f} ± {row.both_spread_ms:.2f} | {row.extra_gib:.2f} | {floor} "
            f"| {error} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table, or what the options ask for."""
    from kernels import bench_variants

    parser = argparse.ArgumentParser(description="Times our GPU kernels.")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--variants", action="store_true", help="choices beside each other")
    parser.add_argument("--around", action="store_true", help="what surrounds the scan")
    asked = parser.parse_args()
    if asked.variants:
        bench_variants.print_variants(asked.repeats)
    if asked.around:
        bench_variants.print_around(asked.repeats)
    if not (asked.variants or asked.around):
        print(markdown(rows(asked.repeats)))


if __name__ == "__main__":
    main()
