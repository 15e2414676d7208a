"""What small runs gain from sharing a device: the same processes one by one, and all at once.

Every run is a process of its own, as in the scheduler. All have built their model, compiled and
warmed up before anything is timed, so start-up is in neither. All start at once, but the first of
each kind of kernels warms up alone, so that the others find them compiled and tuned.
"""

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from arch_search.devices import confine_memory, device_for, device_model
from arch_search.errors import UsageError
from arch_search.plan_spec import ArmSpec
from arch_search.run_settings import ResourceSpec
from arch_search.throughput.contender import Contender
from arch_search.throughput.memory import kernel_signature
from arch_search.throughput.timing import summarise
from kernels.backends import ask_for
from kernels.errors import BackendUnavailable

log = logging.getLogger(__name__)
READY_SECONDS = 600.0  # to build, compile, tune and warm up in
WARMUP = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedRun:
    """One of the runs that share a device: an arm, and where its numbers come from."""

    arm: ArmSpec
    seed: int
    batch: int
    resources: ResourceSpec  # gpus is its share of one


def measure_packing(
    runs: Sequence[PackedRun],
    *,
    steps: int,
    rounds: int,
    tuned: Path | None = None,
    timeout: float = 120.0,
) -> dict[str, Any]:
    """Time `steps` steps of every run, one run after another and all together, in turn.

    Args:
        tuned: the folder that `resources.tuned` is kept in.
    Returns:
        "alone_seconds" and "packed_seconds" of each round, "gain" (alone over packed) with its
        95 % interval, "busy" (the share of the time that one run alone keeps the device at work,
        None where no profiler can tell), and what was run.
    Raises:
        UsageError: a run cannot be as it was asked for here, as on its backends.
        RuntimeError: a run could not start, or one was not done in `timeout` seconds.
    """
    context = get_context("spawn")
    workers: list[tuple[Any, Connection]] = []
    try:
        for run in runs:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(run, theirs, tuned), daemon=True)
            process.start()
            workers.append((process, ours))
        pipes = [pipe for _, pipe in workers]
        ready = _begin(runs, pipes)
        busy = _ask(pipes[0], ("profile", steps), timeout)
        log.info("all are ready; %d rounds of %d steps each follow", rounds, steps)
        alone, packed = [], []
        for _ in range(rounds):
            begun = time.perf_counter()
            for pipe in pipes:
                _ask(pipe, ("run", steps), timeout)
            alone.append(time.perf_counter() - begun)
            packed.append(_all_at_once(pipes, steps, timeout))
            log.info("one after another %.1f s, all at once %.1f s", alone[-1], packed[-1])
    finally:
        for process, pipe in workers:
            pipe.close()
            process.join(5)
            if process.is_alive():
                process.kill()
    gain = summarise([[one / both] for one, both in zip(alone, packed, strict=True)])
    return {
        "runs": len(runs), "steps": steps, "rounds": rounds,
        "arms": [run.arm.name for run in runs],
        "parameters": [run.arm.counts["parameters"] for run in runs],
        "share": runs[0].resources.gpus,
        "device": ready[0]["device"],
        "alone_seconds": alone, "packed_seconds": packed,
        "gain": gain.median, "gain_low": gain.low, "gain_high": gain.high,
        "ready_seconds": [one["seconds"] for one in ready],
        "busy": busy, "peak_memory_gib": max(one["peak_memory_gib"] for one in ready),
    }  # fmt: skip


def _begin(runs: Sequence[PackedRun], pipes: Sequence[Connection]) -> list[dict[str, Any]]:
    """Let every run build and warm up: the first of its kernels alone, then the others together."""
    first: dict[str, int] = {}
    for number, run in enumerate(runs):
        first.setdefault(kernel_signature(run.arm, run.batch), number)
    ready: dict[int, dict[str, Any]] = {}
    for number in first.values():
        pipes[number].send(("begin", 0))
        ready[number] = _ready(number, pipes[number])
    others = [number for number in range(len(runs)) if number not in ready]
    for number in others:
        pipes[number].send(("begin", 0))
    for number in others:
        ready[number] = _ready(number, pipes[number])
    return [ready[number] for number in range(len(runs))]


def _ready(number: int, pipe: Connection) -> dict[str, Any]:
    found = _answer(pipe, READY_SECONDS)
    log.info("run %d is ready, after %.0f s of its own", number, found["seconds"])
    return found


def _all_at_once(pipes: Sequence[Connection], steps: int, timeout: float) -> float:
    begun = time.perf_counter()
    for pipe in pipes:
        pipe.send(("run", steps))
    for pipe in pipes:
        _answer(pipe, timeout)
    return time.perf_counter() - begun


def _ask(pipe: Connection, question: tuple[str, int], timeout: float) -> Any:
    pipe.send(question)
    return _answer(pipe, timeout)


def _answer(pipe: Connection, timeout: float) -> Any:
    try:
        if not pipe.poll(timeout):
            raise RuntimeError(f"a run gave no answer within {timeout:g} s")
        found = pipe.recv()
    except EOFError:
        raise RuntimeError("a run's process ended by itself; see what it wrote above") from None
    if isinstance(found, UsageError):
        raise found
    if isinstance(found, str):
        raise RuntimeError(f"a run failed: {found}")
    return found


def _serve(run: PackedRun, pipe: Connection, tuned: Path | None = None) -> None:
    """In a process of its own: once told to, warm a run up; then do steps until hung up on."""
    os.environ["OMP_NUM_THREADS"] = str(max(1, int(run.resources.cpus)))
    torch.set_num_threads(max(1, int(run.resources.cpus)))
    try:
        pipe.recv()
        begun = time.monotonic()
        device = device_for(run.resources)
        confine_memory(device, run.resources)
        ask_for(run.resources.backends)
        one = Contender(run.arm, device, seed=run.seed, resources=run.resources, tuned=tuned)
        step = one.training_step(run.batch, run.arm.data.sequence_length)
        _steps(step, WARMUP, device)
        reserved = torch.cuda.max_memory_reserved() if device.type == "cuda" else 0
        seconds = time.monotonic() - begun
        pipe.send(
            {
                "device": device_model(device),
                "peak_memory_gib": reserved / 2**30,
                "seconds": seconds,
            }
        )
        while True:
            kind, steps = pipe.recv()
            pipe.send((_busy if kind == "profile" else _steps)(step, steps, device))
    except EOFError:
        return
    except (BackendUnavailable, UsageError) as error:
        pipe.send(UsageError(f"arm {run.arm.name}: {error}"))
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")


def _steps(step: Any, steps: int, device: torch.device) -> float:
    """Seconds of `steps` steps, the device's work included."""
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun


def _busy(step: Any, steps: int, device: torch.device) -> float | None:
    """The share of the time in which the device is at work; None without a GPU or its profiler.

    Kernels' times come from the profiler; the time that they fill is taken without it.
    """
    if device.type != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile

    seconds = _steps(step, steps, device)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        _steps(step, steps, device)
    worked = sum(event.self_device_time_total for event in profiler.key_averages())
    return worked / 1e6 / seconds if worked else None
