"""One training run: build, loop, finish. The same function for every arm of every experiment."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from arch_search.checkpoint import load_checkpoint, save_checkpoint
from arch_search.data import Manifest, StreamHash, TrainingStream, loader, open_split
from arch_search.devices import autocast, device_for
from arch_search.metrics import PeakMemory, Stopwatch
from arch_search.model import LanguageModel, branch_scales, build_model, next_token_loss
from arch_search.optim import (
    clip_gradients,
    learning_rate_share,
    make_optimiser,
    set_learning_rate,
)
from arch_search.spec import LogSpec, ResourceSpec, RunSpec
from arch_search.tasks.base import EvaluationContext
from arch_search.tasks.language import subset_bits_per_byte


class Diverged(ArithmeticError):
    """The loss or its gradient stopped being a number: an outcome of the arm, not a fault."""

    def __init__(self, step: int, what: str) -> None:
        super().__init__(f"{what} at step {step}")
        self.step, self.what = step, what


class Attempt(Protocol):
    """What training needs of the attempt that it runs in; see `arch_search.attempt`."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...
    def stream(self, step: int, tokens: str) -> None: ...
    def checkpoint(self, step: int, write: Any) -> None: ...
    def latest_checkpoint(self) -> tuple[int, Path] | None: ...
    def stop_requested(self) -> bool: ...
    def check(self) -> None: ...


@dataclass(slots=True)
class Progress:
    """Where a run stands: all of it is in a checkpoint beside the weights and moments."""

    step: int = 0  # optimiser steps done
    seconds: float = 0.0  # of training, validation and checkpoints left out
    peak_memory_gib: float = 0.0
    loss: float = float("inf")  # mean over the last record
    stream: dict[str, Any] = field(default_factory=dict)
    branch_scales: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Window:
    """What has happened since the last record. Losses stay on the device: no synchronisation."""

    losses: list[Tensor] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)
    first_step: int = 0
    seconds_before: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A finished training: the model and what is said of it."""

    model: LanguageModel
    progress: Progress


def train(
    spec: RunSpec,
    attempt: Attempt,
    *,
    manifest: Manifest,
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
    memory = PeakMemory(device)
    stream = TrainingStream(
        open_split(manifest, "train"),
        sequence_length=spec.data.sequence_length,
        batch=spec.data.batch,
        seed=spec.data_seed,
    )
    validation = EvaluationContext(
        split=open_split(manifest, "val"),
        sequence_length=spec.data.sequence_length,
        device=device,
        precision=spec.train.precision,
    )
    model = build_model(spec.model, seed=spec.init_seed, device=device)
    optimiser = make_optimiser(model, model.declared_parameters(), spec.train.optimiser)
    progress = Progress()
    if (found := attempt.latest_checkpoint()) is not None:
        progress = Progress(**load_checkpoint(found[1], model, optimiser))
    else:
        progress.branch_scales = branch_scales(model, _tokens(stream.batch(0), device)[:, :-1])
    seen = StreamHash.from_state(stream, progress.stream) if progress.stream else StreamHash(stream)
    watch = Stopwatch(seconds=progress.seconds)
    window = _Window(first_step=progress.step, seconds_before=watch.read())

    def save() -> None:
        progress.seconds, progress.stream = watch.read(), seen.state()
        progress.peak_memory_gib = max(progress.peak_memory_gib, memory.gib())
        attempt.checkpoint(
            progress.step, lambda folder: save_checkpoint(folder, model, optimiser, progress)
        )

    for step, batch in loader(
        stream, first_step=progress.step, last_step=spec.steps, workers=resources.loader_workers
    ):
        share = learning_rate_share(step, spec.steps, spec.train.schedule)
        set_learning_rate(optimiser, share * spec.train.optimiser.learning_rate)
        tokens = _tokens(batch, device)
        loss = accumulate_gradients(model, tokens, resources.micro_batch, spec.train.precision)
        norm = clip_gradients(model, spec.train.optimiser.gradient_clip)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        seen.update(step, batch)
        window.losses.append(loss)
        window.norms.append(norm)
        progress.step = done = step + 1

        last = done == spec.steps
        if done % log.every == 0 or done % log.checkpoint_every == 0 or last:
            values = _close_window(window, done, watch, spec)
            values["memory/peak_gib"] = max(progress.peak_memory_gib, memory.gib())
            values["train/learning_rate"] = share * spec.train.optimiser.learning_rate
            progress.loss = values["train/loss"]
            attempt.log(done, values)
            attempt.stream(done, seen.tokens[:16])
            window = _Window(first_step=done, seconds_before=watch.read())
        with watch.paused():
            if done % log.validate_every == 0 or last:
                bits = subset_bits_per_byte(model, validation, log.validation_tokens)
                attempt.log(done, {"val/subset_bits_per_byte": bits})
            stopping = attempt.stop_requested()
            if done % log.checkpoint_every == 0 or last or stopping:
                save()
            attempt.check()

    return Trained(model=model, progress=progress)


def accumulate_gradients(
    model: LanguageModel, tokens: Tensor, micro_batch: int, precision: str
) -> Tensor:
    """Gradients of the mean loss over a global batch, added up over its pieces.

    Args:
        tokens: (B, T + 1) int64; the global batch, whatever the pieces.
        micro_batch: sequences in one piece; 0 takes all at once.
    Returns:
        The mean loss in nats a token, a detached scalar on the device.
    """
    targets_in_all = tokens[:, 1:].numel()
    total = torch.zeros((), device=tokens.device)
    for piece in tokens.split(micro_batch or len(tokens)):
        with autocast(tokens.device, precision):
            logits, _ = model(piece[:, :-1])
        loss = next_token_loss(logits, piece[:, 1:]) / targets_in_all
        loss.backward()
        total += loss.detach()
    return total


def _tokens(batch: np.ndarray, device: torch.device) -> Tensor:
    tokens = torch.from_numpy(batch)
    if device.type == "cuda":
        return tokens.pin_memory().to(device, non_blocking=True)
    return tokens


def _close_window(window: _Window, done: int, watch: Stopwatch, spec: RunSpec) -> dict[str, float]:
    """Averages since the last record; finds the first step at which something was not finite."""
    losses = torch.stack(window.losses).cpu()  # synchronises the device, once a window
    norms = torch.stack(window.norms).cpu()
    for name, values in (("loss", losses), ("gradient norm", norms)):
        bad = (~torch.isfinite(values)).nonzero()
        if len(bad):
            step = window.first_step + int(bad[0]) + 1
            raise Diverged(step, f"the {name} is {float(values[bad[0]])}")
    steps = done - window.first_step
    tokens = steps * spec.data.batch * spec.data.sequence_length
    seconds = watch.read() - window.seconds_before
    return {
        "train/loss": float(losses.double().mean()),
        "train/gradient_norm": float(norms.double().mean()),
        "throughput/tokens_per_second": tokens / seconds,
    }


def result_of(spec: RunSpec, trained: Trained, started: float) -> dict[str, Any]:
    """What a finished run leaves in result.json, besides its environment."""
    progress = trained.progress
    tokens = spec.steps * spec.data.batch * spec.data.sequence_length
    hashes = progress.stream
    return {
        "steps": spec.steps,
        "tokens": tokens,
        "stream": {"tokens": hashes["tokens"], "text": hashes["text"]},
        "branch_scales": progress.branch_scales,
        "metrics": {
            "train/final_loss": progress.loss,
            "throughput/tokens_per_second": tokens / progress.seconds,
            "memory/peak_gib": progress.peak_memory_gib,
            "train/seconds": progress.seconds,
        },
        "started": started,
        "ended": time.time(),
    }
