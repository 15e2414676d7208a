"""One training run: build, loop, finish. The same function for every arm of every experiment."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arch_search.attempt import Attempt
from arch_search.checkpoint import load_checkpoint, load_weights, save_checkpoint
from arch_search.data import Manifest, TrainingStream, loader
from arch_search.devices import autocast, device_for
from arch_search.errors import Diverged, Stopped
from arch_search.feeding import AHEAD, feed, on_device
from arch_search.metrics import PeakMemory, Stopwatch
from arch_search.micro_batches import (
    accumulate_gradients,
    accumulate_within_memory,
    inputs_and_targets,
)
from arch_search.model import (
    LanguageModel,
    branch_scales,
    build_model,
    parameter_hashes,
)
from arch_search.optim import (
    clip_gradients,
    learning_rate_share,
    make_optimiser,
    set_learning_rate,
)
from arch_search.run_settings import LogSpec, ResourceSpec
from arch_search.segments import cut_rows, first_segment, row_length
from arch_search.spec import RunSpec
from arch_search.start_check import check_start
from arch_search.starting import start_folder
from arch_search.step_graphs import Gradients, StepGraphs
from arch_search.streams import Stream, held_out, open_hash, open_stream
from arch_search.tasks.base import EvaluationContext
from arch_search.tasks.validation import validate
from arch_search.trunk import Trunk
from arch_search.warm_up import warm_up


@dataclass(slots=True)
class Progress:
    """Where a run stands: all of it is in a checkpoint beside the weights and moments."""

    step: int = 0  # optimiser steps done
    seconds: float = 0.0  # of training, validation and checkpoints left out
    peak_memory_gib: float = 0.0
    loss: float = float("inf")  # mean over the last record
    unlogged: dict[str, list[float]] = field(default_factory=dict)  # each step's, since then
    stream: dict[str, Any] = field(default_factory=dict)
    branch_scales: dict[str, float] = field(default_factory=dict)
    starts: dict[str, str] = field(default_factory=dict)  # a hash of each parameter's first value
    forked: int = 0  # steps taken over from a shorter run of the same trunk
    micro_batch: int = 0  # sequences in one forward pass; 0: the whole batch
    halved_at: list[int] = field(default_factory=list)  # steps at which memory did not suffice


class _Window:
    """The steps since the last record. Values stay on the device: logging never synchronises."""

    def __init__(self, step: int, seconds: float, device: torch.device) -> None:
        self.first = self.timed_from = step
        self.seconds_before = seconds
        self.device = device
        self.values: dict[str, list[Tensor]] = {"loss": [], "gradient_norm": []}

    def restore(self, unlogged: dict[str, list[float]]) -> None:
        """Take up the steps that a checkpoint was written amid; the clock starts anew."""
        for name, values in unlogged.items():
            self.values[name] = [torch.tensor(value, device=self.device) for value in values]
        self.first -= len(self.values["loss"])

    def unlogged(self) -> dict[str, list[float]]:
        return {name: [float(v) for v in values] for name, values in self.values.items()}

    def close(self, done: int, watch: Stopwatch, tokens_per_step: int) -> dict[str, float]:
        """Averages and speed. Raises Diverged at the first step where something is not finite."""
        averages = {}
        for name, values in self.values.items():
            series = torch.stack(values).cpu()  # synchronises the device, once a window
            bad = (~torch.isfinite(series)).nonzero()
            if len(bad):
                step = self.first + int(bad[0]) + 1
                raise Diverged(step, f"the {name.replace('_', ' ')}")
            averages[f"train/{name}"] = float(series.double().mean())
        seconds = watch.read() - self.seconds_before
        speed = (done - self.timed_from) * tokens_per_step / seconds
        return {**averages, "throughput/tokens_per_second": speed}


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A finished training: the model and what is said of it."""

    model: LanguageModel
    progress: Progress
    kernels: dict[str, object]  # tuned configurations, on a GPU
    graphs: str = ""  # which steps went by a CUDA graph, where that was asked for


def train(
    spec: RunSpec,
    attempt: Attempt,
    *,
    manifest: Manifest | None,
    log: LogSpec,
    resources: ResourceSpec,
) -> Trained:
    """Train from the latest checkpoint, or from the start, to the last step of `spec`.

    On a CPU a resumed run ends with the same weights, to the bit, as one that was never stopped.

    Raises:
        Diverged: the loss or the gradient's norm is not finite; the step is the first such one.
        Stopped, Fenced: from `attempt.check()`; a stopped run has saved a checkpoint.
    """
    device = device_for(resources)
    stream = open_stream(spec, manifest)
    validation = EvaluationContext(
        split=held_out(manifest),
        data=spec.data,
        sequence_length=spec.data.sequence_length,
        device=device,
        precision=spec.train.precision,
        tick=attempt.tick,
    )
    torch.manual_seed(step_seed(spec.init_seed, -1))  # for buffers that a block draws
    model = build_model(spec.model, seed=spec.init_seed, device=device)
    check_start(model)
    optimiser = make_optimiser(model, model.declared_parameters(), spec.train.optimiser)
    progress = Progress()
    root = attempt.run.path.parents[1]
    trunk = Trunk(root, spec) if log.keep_trunk else None
    if (found := attempt.latest_checkpoint()) is not None:
        progress = Progress(**load_checkpoint(found[1], model, optimiser))
    elif trunk is not None and (found := trunk.latest()) is not None:
        progress = Progress(**load_checkpoint(found[1], model, optimiser))
        progress.forked = progress.step
        attempt.event(f"went on from step {progress.step} of a shorter run's trunk")
    else:
        if spec.train.start:
            load_weights(start_folder(attempt.run.path.parents[1], spec.train.start), model)
        progress.starts = parameter_hashes(model)
    if not progress.halved_at:
        progress.micro_batch = resources.micro_batch

    def halve(size: int) -> None:
        before, at = progress.micro_batch or spec.data.batch, progress.step + 1
        progress.micro_batch = size
        progress.halved_at.append(at)
        attempt.event(
            f"out of memory at step {at} with {before} sequences at once: goes on with {size}; "
            "the batch and the order of its tokens stay"
        )

    def plain(rows: Tensor, resets: Tensor | None, parts: int) -> Tensor:
        return accumulate_within_memory(
            model, rows, progress.micro_batch * parts, spec.train.precision, resets,
            halved=lambda size: halve(-(-size // parts)), truncate=spec.train.truncate,
        )  # fmt: skip

    def bare(rows: Tensor, resets: Tensor | None, parts: int) -> Tensor:
        return accumulate_gradients(
            model, rows, progress.micro_batch * parts, spec.train.precision, resets,
            truncate=spec.train.truncate,
        )  # fmt: skip

    graphs: StepGraphs | None = None
    if resources.graphs and device.type == "cuda":
        graphs = StepGraphs(
            model, plain=plain, bare=bare, size=lambda: progress.micro_batch, told=attempt.event
        )
    gradients: Gradients = plain if graphs is None else graphs

    starts = stream.resets if spec.data.reset and isinstance(stream, TrainingStream) else None
    rows, resets, parts = cut_rows(
        on_device(stream.batch(progress.step), device),
        None if starts is None else on_device(starts(progress.step), device),
        row_length(spec.data, progress.step),
    )
    rows, resets = first_segment(rows, resets, spec.train.truncate)
    kernels = warm_up(
        model, rows, progress.micro_batch * parts, spec.train.precision, resets,
        resources=resources, kept=root / "tuned", halved=halve,
    )  # fmt: skip
    if progress.step == 0:
        progress.branch_scales = _scales(model, stream, spec, progress.micro_batch, device)
    if kernels.cache is not None:
        attempt.event(f"kernels warm after {kernels.seconds:.1f} s")
    seen = open_hash(stream, progress.stream)
    watch, memory = Stopwatch(progress.seconds), PeakMemory(device, progress.peak_memory_gib)
    window = _Window(progress.step, watch.read(), device)
    window.restore(progress.unlogged)
    tokens_per_step = spec.data.batch * spec.data.sequence_length

    def save(keep: Callable[[int, Callable[[Path], None]], None] = attempt.checkpoint) -> None:
        progress.seconds, progress.stream = watch.read(), seen.state()
        progress.unlogged = window.unlogged()
        progress.peak_memory_gib = memory.gib()
        keep(progress.step, lambda folder: save_checkpoint(folder, model, optimiser, progress))

    batches = loader(
        stream, first_step=progress.step, last_step=spec.steps, workers=resources.loader_workers
    )
    for fed in feed(batches, starts, device, ahead=AHEAD if device.type == "cuda" else 0):
        step = fed.step
        torch.manual_seed(step_seed(spec.init_seed, step))  # for blocks that draw, as dropout does
        share = learning_rate_share(step, spec.steps, spec.train.schedule)
        set_learning_rate(optimiser, share * spec.train.optimiser.learning_rate)
        rows, resets, parts = cut_rows(fed.tokens, fed.resets, row_length(spec.data, step))
        loss = gradients(rows, resets, parts)
        norm = clip_gradients(model, spec.train.optimiser.gradient_clip)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        seen.update(step, fed.batch)
        window.values["loss"].append(loss)
        window.values["gradient_norm"].append(norm)
        progress.step = done = step + 1

        last = done == spec.steps
        if done % log.every == 0 or done % log.checkpoint_every == 0 or last:
            values = window.close(done, watch, tokens_per_step)
            values["memory/peak_gib"] = memory.gib()
            values["train/learning_rate"] = share * spec.train.optimiser.learning_rate
            progress.loss = values["train/loss"]
            attempt.log(done, values)
            attempt.stream(done, seen.tokens[:16], seen.text)
            window = _Window(done, watch.read(), device)
        due = done % log.checkpoint_every == 0 or last
        validated = done % log.validate_every == 0 or last
        if (due or validated) and device.type == "cuda":
            torch.cuda.synchronize(device)  # what is queued is training, and in its time
        with watch.paused(), memory.paused():
            if validated:
                attempt.log(done, validate(model, validation, log.validation_tokens))
            if due:
                save()
            if trunk is not None and done == trunk.end:
                save(trunk.keep)
            try:
                attempt.check()
            except Stopped:
                if not due:
                    save()
                raise

    if late := kernels.tuned_since():
        attempt.event(f"tuned amid training, in the clock: {', '.join(late)}")
    used = "" if graphs is None else graphs.used()
    return Trained(model=model, progress=progress, kernels=kernels.record(), graphs=used)


def _scales(
    model: LanguageModel, stream: Stream, spec: RunSpec, micro_batch: int, device: torch.device
) -> dict[str, float]:
    """Of the first batch; on a GPU of as much of it as fits, in the precision that is trained."""
    tokens = inputs_and_targets(on_device(stream.batch(0), device))[0]
    if device.type == "cuda":
        tokens = tokens[: micro_batch or len(tokens)]
    with autocast(device, spec.train.precision):
        return branch_scales(model, tokens)


def step_seed(init_seed: int, step: int) -> int:
    """The global generator's seed at a step (-1: while building): a resumed run draws alike."""
    text = f"{init_seed}/step/{step}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def result_of(spec: RunSpec, trained: Trained, started: float) -> dict[str, Any]:
    """What a finished run leaves in result.json, besides its environment."""
    progress = trained.progress
    tokens = spec.steps * spec.data.batch * spec.data.sequence_length
    hashes = progress.stream
    return {
        "steps": spec.steps,
        "tokens": tokens,
        "forked_at": progress.forked,
        "stream": {"tokens": hashes["tokens"], "text": hashes["text"]},
        "branch_scales": progress.branch_scales,
        "starts": progress.starts,
        "micro_batch": {"used": progress.micro_batch, "halved_at": progress.halved_at},
        "metrics": {
            "train/final_loss": progress.loss,
            "throughput/tokens_per_second": tokens / progress.seconds,
            "memory/peak_gib": progress.peak_memory_gib,
            "train/seconds": progress.seconds,
        },
        "started": started,
        "ended": time.time(),
    }
