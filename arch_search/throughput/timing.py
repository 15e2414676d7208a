"""Clocks, and what is said of the times that they gave."""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

RESAMPLES = 2_000
LEVEL = 0.95


def time_calls(
    run: Callable[[], object], device: torch.device, *, warmup: int, calls: int
) -> list[float]:
    """Seconds of each of `calls` calls behind `warmup` untimed ones.

    On CUDA events mark the calls on the device, which is waited for behind the last alone: the host
    runs ahead, as in training. A wait before the first call would put into it what the host takes
    to launch the first kernels (5 to 15 ms of 260, measured with a model of 24 layers).
    """
    for _ in range(warmup):
        run()
    if device.type != "cuda":
        times = [time.perf_counter()]
        for _ in range(calls):
            run()
            times.append(time.perf_counter())
        return [after - before for before, after in itertools.pairwise(times)]
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    torch.cuda.synchronize(device)
    return [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(marks)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """A median with its 95 % bootstrap interval; n values in `rounds` rounds."""

    median: float
    low: float
    high: float
    n: int
    rounds: int


def summarise(rounds: Sequence[Sequence[float]], *, seed: int = 0) -> Summary:
    """Of values by round. Rounds are drawn with replacement, then the values within each.

    Values of one round share what the machine did then, so they alone would look too certain.
    """
    draws = _resampled(rounds, seed)
    low, high = np.quantile(np.median(draws, axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    every = np.concatenate([np.asarray(values, dtype=float) for values in rounds])
    return Summary(
        median=float(np.median(every)), low=float(low), high=float(high),
        n=len(every), rounds=len(rounds),
    )  # fmt: skip


def summarise_ratio(
    rounds: Sequence[Sequence[float]], base: Sequence[Sequence[float]], *, seed: int = 0
) -> Summary:
    """The median over rounds of each round's ratio: its median here over its median in `base`.

    The two took turns, so what changed from round to round is in both and cancels.
    """
    if len(rounds) != len(base):
        raise ValueError(f"{len(rounds)} rounds against {len(base)}; a ratio needs the same ones")
    ratios = np.median(rounds, axis=1) / np.median(base, axis=1)
    drawn = _by_round(rounds, seed) / _by_round(base, seed)
    low, high = np.quantile(np.median(drawn, axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Summary(
        median=float(np.median(ratios)), low=float(low), high=float(high),
        n=sum(map(len, rounds)), rounds=len(rounds),
    )  # fmt: skip


def _by_round(rounds: Sequence[Sequence[float]], seed: int) -> np.ndarray:
    """(resamples, rounds): the median of each round drawn."""
    return np.median(_resampled(rounds, seed).reshape(RESAMPLES, len(rounds), -1), axis=2)


def _resampled(rounds: Sequence[Sequence[float]], seed: int) -> np.ndarray:
    """(resamples, values), round after round; equal seeds draw the same rounds."""
    values = np.asarray(rounds, dtype=float)  # (rounds, values a round)
    count, each = values.shape
    generator = np.random.default_rng(seed)
    chosen = generator.integers(count, size=(RESAMPLES, count))
    within = generator.integers(each, size=(RESAMPLES, count, each))
    return values[chosen[:, :, None], within].reshape(RESAMPLES, count * each)
