"""One arm on a device, ready to take its turn at a cell."""

import gc
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from arch_search.devices import autocast
from arch_search.metrics import PeakMemory
from arch_search.micro_batches import accumulate_gradients
from arch_search.model import LanguageModel
from arch_search.optim import clip_gradients, make_optimiser
from arch_search.plan_spec import ArmSpec
from arch_search.run_settings import ResourceSpec
from arch_search.step_graphs import Gradients, StepGraphs
from arch_search.throughput.as_graph import as_graph
from arch_search.throughput.settings import Cell, ThroughputSpec
from arch_search.throughput.timing import time_calls
from arch_search.warm_up import compiles, warm_up
from blocks.base import State
from blocks.initialisation import Parameter, named_generator
from kernels.backends import backends_used, forget_backends

log = logging.getLogger(__name__)
FIRST_CALLS = 2  # more untimed ones when a cell is new: kernels are compiled and tuned
SHAPES = 1_024  # layers of one kind at one batch and length, each compiled once
EXACT_ELEMENTS = 2**20  # larger parameters are drawn on the device, by their declared moments


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """What one arm did in one turn at a cell: seconds of each call, the peak, cached bytes.

    launched: seconds of the same calls kernel by kernel, where `seconds` are those of a graph.
    no_graph: why they are not, where a GPU reads or decodes.
    """

    seconds: list[float]
    peak_bytes: int = 0
    cache_bytes: int = 0
    launched: list[float] = field(default_factory=list)
    no_graph: str = ""


class Contender:
    """An arm's model on the device. Optimiser and gradients live for the length of a turn only.

    Attributes:
        backends: what each kernel with a choice ran on so far.
    """

    def __init__(
        self,
        arm: ArmSpec,
        device: torch.device,
        *,
        seed: int = 0,
        resources: ResourceSpec,
        tuned: Path | None = None,
        parks: bool = False,
    ) -> None:
        """Build the model with a start of the declared scale.

        Args:
            parks: between its turns the model waits in the host's memory.
            resources: which backends and tuned configurations to use, and whether to compile.
            tuned: the folder that `resources.tuned` is kept in.
        """
        self.arm, self.device = arm, device
        self._resources, self._tuned, self._parks = resources, tuned or Path(), parks
        self.backends: dict[str, str] = {}
        with torch.device(device):
            self.model = LanguageModel(arm.model)
        _fill(self.model, self.model.declared_parameters(), seed)
        self._bytes = sum(p.nbytes for p in self.model.parameters())
        self._leave()
        self._tokens = torch.Generator().manual_seed(seed)
        self._known: set[tuple[str, int, int]] = set()
        self._warm: set[tuple[int, int]] = set()

    def turn(self, cell: Cell, spec: ThroughputSpec) -> Turn:
        """Run the cell's calls, timed behind untimed ones.

        Raises:
            torch.OutOfMemoryError: it does not fit.
        """
        key = (cell.kind, cell.batch, cell.length)
        warmup = spec.warmup + (0 if key in self._known else FIRST_CALLS)
        forget_backends()
        self.model.to(self.device)
        others = self._allocated() - self._bytes
        memory = PeakMemory(self.device)
        run = {"train": self._train, "prefill": self._prefill, "decode": self._decode}[cell.kind]
        try:
            turn = run(cell, spec, warmup)
            self._known.add(key)
        finally:
            self._leave()
            self.backends |= {k: ", ".join(names) for k, names in backends_used().items()}
        peak = round(memory.gib() * 2**30) - max(others, 0)
        return replace(turn, peak_bytes=peak)

    def release(self) -> None:
        """Give back what a turn that failed left on the device."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _leave(self) -> None:
        """Free the device of gradients, and of the model if it parks."""
        self.model.zero_grad(set_to_none=True)
        if self._parks:
            self.model.to("cpu")

    def training_step(self, batch: int, length: int) -> Callable[[], None]:
        """A whole training step of the functions that `train` steps with, on tokens of its own."""
        arm = self.arm.train
        if (batch, length) not in self._warm:
            self._warm_up(self._batch(batch, length + 1))
            self._warm.add((batch, length))
        optimiser = make_optimiser(self.model, self.model.declared_parameters(), arm.optimiser)
        gradients = self._gradients()

        def step() -> None:
            gradients(self._batch(batch, length + 1), None, 1)
            clip_gradients(self.model, arm.optimiser.gradient_clip)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

        return step

    def _gradients(self) -> Gradients:
        """As a run takes them: by graphs if it asked for them, recorded anew in each turn."""

        def plain(rows: Tensor, resets: Tensor | None, parts: int) -> Tensor:
            return accumulate_gradients(self.model, rows, 0, self.arm.train.precision, resets)

        if not self._resources.graphs or self.device.type != "cuda":
            return plain
        return StepGraphs(self.model, plain=plain, bare=plain, size=lambda: 0, told=log.info)

    def _warm_up(self, tokens: Tensor) -> None:
        """As a run does before its clock starts: backends chosen, kernels tuned and compiled."""
        warm_up(
            self.model,
            tokens,
            0,
            self.arm.train.precision,
            None,
            resources=self._resources,
            kept=self._tuned,
            halved=_out_of_memory,
        )
        if compiles(self._resources, self.device):
            torch._dynamo.config.recompile_limit = SHAPES
            torch._dynamo.config.accumulated_recompile_limit = SHAPES

    def _train(self, cell: Cell, spec: ThroughputSpec, warmup: int) -> Turn:
        step = self.training_step(cell.batch, cell.length)
        return Turn(seconds=time_calls(step, self.device, warmup=warmup, calls=spec.steps))

    def _prefill(self, cell: Cell, spec: ThroughputSpec, warmup: int) -> Turn:
        tokens = self._batch(cell.batch, cell.length)
        with torch.no_grad(), autocast(self.device, self.arm.train.precision):
            states = self._read(tokens)[1]
            cached = cache_bytes(states)
            del states

            def read() -> Tensor:
                return self._read(tokens)[0]

            launched = time_calls(read, self.device, warmup=warmup, calls=spec.steps)
            return self._also_as_graph(read, launched, cached)

    def _decode(self, cell: Cell, spec: ThroughputSpec, warmup: int) -> Turn:
        """Greedy tokens one at a time, behind a context that is read at once and not timed.

        As a graph the step behind all of them is repeated, which moves no state on.
        """
        with torch.no_grad(), autocast(self.device, self.arm.train.precision):
            token, states = self._read(self._batch(cell.batch, cell.length))
            cached = cache_bytes(states)

            def one() -> None:
                nonlocal token, states
                token, states = self._read(token, states)

            launched = time_calls(one, self.device, warmup=warmup, calls=spec.decode_tokens)
            return self._also_as_graph(lambda: self._read(token, states)[0], launched, cached)

    def _also_as_graph(
        self, step: Callable[[], Tensor], launched: list[float], cached: int
    ) -> Turn:
        """The times of a step as a graph as often as it was launched, or those where there is none.

        A forward pass over few tokens takes a GPU less than Python takes to launch it: 37 ms of
        launches a token, measured, whatever the mixer.
        """
        replay, why_not = as_graph(step, self.device)
        if replay is None:
            return Turn(seconds=launched, no_graph=why_not, cache_bytes=cached)
        seconds = time_calls(replay, self.device, warmup=1, calls=len(launched))
        return Turn(seconds=seconds, launched=launched, cache_bytes=cached)

    def _read(
        self, tokens: Tensor, states: list[State] | None = None
    ) -> tuple[Tensor, list[State]]:
        """The likeliest next token of each sequence, (B, 1), and the states."""
        features, after = self.model.features(tokens, states)
        return self.model.logits(features[:, -1:]).argmax(dim=-1), after

    def _batch(self, batch: int, length: int) -> Tensor:
        """Tokens drawn evenly from the vocabulary: what they are changes no speed."""
        shape = (batch, length)
        drawn = torch.randint(self.arm.model.vocabulary, shape, generator=self._tokens)
        if self.device.type == "cuda":
            return drawn.pin_memory().to(self.device, non_blocking=True)
        return drawn

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0


def _out_of_memory(size: int) -> None:
    """Where a run would go on with smaller pieces, this cell has no speed."""
    raise torch.OutOfMemoryError(f"out of memory with more than {size} sequences at once")


def cache_bytes(states: list[State]) -> int:
    """Bytes that a sequence model carries from one token to the next, for the whole batch."""
    return sum(part.nbytes for state in states for part in state.values())


def _fill(model: nn.Module, declared: dict[str, Parameter], seed: int) -> None:
    """Start values: exact where that is cheap, else of the declared mean and deviation.

    A large model takes a minute to be drawn on the host; its speed depends on the scale alone.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            start = declared[name].start
            if parameter.numel() <= EXACT_ELEMENTS:
                drawn = named_generator(seed, name, parameter.shape)
                parameter.copy_(start.sample(parameter.shape, drawn))
            else:
                mean, deviation = start.moments(parameter.shape)
                parameter.normal_(mean, deviation if math.isfinite(deviation) else 0.02)
