"""CPU time of the scans, fast form against loop, taken in turn in one process.

    OMP_NUM_THREADS=1 python -m kernels.cpu_timing

CPU seconds of one thread, so that other work on the machine disturbs little; medians, with the
quartiles in brackets. What it printed last stands in kernels/MEASURED.md.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from kernels.gated_delta import gated_delta
from kernels.m2rnn import m2rnn_scan
from kernels.rnn import gru_scan, lstm_scan, rnn_scan
from kernels.ssd import ssd_scan

BATCH, LENGTH, REPEATS = 8, 128, 15

Scan = Callable[..., tuple[Tensor, ...]]


def leaf(*shape: int, scale: float = 1.0) -> Tensor:
    """A normal tensor that needs a gradient."""
    return (torch.randn(*shape) * scale).requires_grad_()


def m2rnn_inputs(key_dim: int, heads: int, value_dim: int = 16) -> list[Tensor]:
    """One head of q and k, N of the rest, W the identity."""
    shape = (BATCH, LENGTH)
    query, key = (leaf(*shape, 1, key_dim, scale=0.3) for _ in range(2))
    forget = torch.rand(*shape, heads).requires_grad_()
    weight = torch.eye(value_dim).expand(heads, -1, -1).clone().requires_grad_()
    return [query, key, leaf(*shape, heads, value_dim), forget, weight]


def linear_inputs(heads: int, key_dim: int, value_dim: int) -> list[Tensor]:
    """q, k of norm 1, v, log decay."""
    shape = (BATCH, LENGTH, heads)
    key = torch.nn.functional.normalize(torch.randn(*shape, key_dim), dim=-1).requires_grad_()
    decay = (-torch.rand(*shape)).requires_grad_()
    return [leaf(*shape, key_dim), key, leaf(*shape, value_dim), decay]


def vector_inputs(parts: int, heads: int = 5, size: int = 16, wide: int = 1) -> list[Tensor]:
    """`parts` inputs over time and as many weights."""
    over_time = [leaf(BATCH, LENGTH, heads, wide * size) for _ in range(parts)]
    return over_time + [leaf(heads, size, wide * size, scale=0.3) for _ in range(parts)]


def cpu_ms(run: Callable[[], object]) -> float:
    """CPU milliseconds of one call."""
    start = time.process_time()
    run()
    return (time.process_time() - start) * 1e3


def in_turn(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """CPU milliseconds of each, A B A B, after a warm-up of each."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(repeats):
        for name, run in runs.items():
            times[name].append(cpu_ms(run))
    return times


def show(times: list[float]) -> str:
    """median [lower quartile, upper quartile]."""
    low, middle, high = statistics.quantiles(times, n=4)
    return f"{middle:.1f} [{low:.1f}, {high:.1f}]"


def training_step(scan: Scan, inputs: list[Tensor], backend: str) -> Callable[[], object]:
    """Forward and backward."""

    def run() -> None:
        scan(*inputs, backend=backend)[0].sum().backward()

    return run


def main() -> None:
    """Print one line of a Markdown table for each scan and size."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cases: list[tuple[str, Scan, list[Tensor], str]] = [
        (f"m2rnn K {K}, V 16, N {N}", m2rnn_scan, m2rnn_inputs(K, N), "torch")
        for K in (16, 32, 64)
        for N in (4, 8)
    ]
    beta = torch.rand(BATCH, LENGTH, 2).requires_grad_()
    cases += [
        ("gated delta K 16, V 32, N 2", gated_delta, [*linear_inputs(2, 16, 32), beta], "chunked"),
        ("ssd K 16, V 16, N 5", ssd_scan, linear_inputs(5, 16, 16), "chunked"),
        ("rnn V 16, N 5", rnn_scan, vector_inputs(1), "torch"),
        ("gru V 16, N 5", gru_scan, vector_inputs(3), "torch"),
        ("lstm V 16, N 5", lstm_scan, vector_inputs(1, wide=4), "torch"),
    ]
    for name, scan, inputs, fast in cases:
        runs = {b: training_step(scan, inputs, b) for b in ("loop", fast)}
        times = in_turn(runs, REPEATS)
        ratios = [a / b for a, b in zip(times["loop"], times[fast], strict=True)]
        print(f"| {name} | {show(times['loop'])} | {show(times[fast])} | {show(ratios)} |")


if __name__ == "__main__":
    main()
