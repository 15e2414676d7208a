"""A step's gradients as a CUDA graph: launched at once, for runs whose kernels are short.

A small model's step is some hundred kernels of a few microseconds, and Python takes longer to
launch them than they run. A graph holds the launches of one shape of batch and repeats them in one.
It is used only after it gave, on the step at which it was recorded, what the plain step gave.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

SAME = 1e-3  # of a gradient's norm: kernels that add atomically differ by rounding, no more


class Gradients(Protocol):
    """Adds to `.grad` of a model's parameters what a batch teaches, and returns its mean loss."""

    def __call__(self, rows: Tensor, resets: Tensor | None, parts: int) -> Tensor: ...


Recorder = Callable[[Callable[[], Tensor]], tuple[Tensor, Callable[[], None]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Recorded:
    """One shape's graph: it reads its batch from where it was recorded, and writes in its place."""

    rows: Tensor
    resets: Tensor | None
    loss: Tensor
    gradients: list[Tensor | None]
    replay: Callable[[], None]

    def run(self, rows: Tensor, resets: Tensor | None) -> None:
        self.rows.copy_(rows)
        if self.resets is not None and resets is not None:
            self.resets.copy_(resets)
        self.replay()


class StepGraphs:
    """Gradients by graphs, one for each shape of batch; plain where a shape cannot be recorded."""

    def __init__(
        self,
        model: nn.Module,
        *,
        plain: Gradients,
        bare: Gradients,
        size: Callable[[], int],
        told: Callable[[str], None],
        record: Recorder | None = None,
    ) -> None:
        """
        Args:
            plain: a whole step, which may take smaller pieces where memory does not suffice.
            bare: the same in pieces of a fixed size, without synchronising: what is recorded.
            size: sequences in a piece, as `plain` left it.
            told: hears in a line what was recorded, or why not.
            record: runs a function once, recording; its result, and what repeats it in place.
        """
        self.parameters, self.buffers = list(model.parameters()), list(model.buffers())
        self.plain, self.bare, self.size, self.told = plain, bare, size, told
        self.record = CudaRecorder() if record is None else record
        self.known: dict[tuple[object, ...], _Recorded | None] = {}

    def __call__(self, rows: Tensor, resets: Tensor | None, parts: int) -> Tensor:
        """As `plain`. The gradients' memory is the graph's own: use them before the next call."""
        key = self._key(rows, resets, parts)
        if key not in self.known:
            return self._first(rows, resets, parts)
        recorded = self.known[key]
        if recorded is None:
            return self.plain(rows, resets, parts)
        recorded.run(rows, resets)
        self._put(recorded.gradients)
        return recorded.loss.clone()

    def used(self) -> str:
        """Which steps went by a graph: all, some or none of the shapes seen."""
        recorded = sum(graph is not None for graph in self.known.values())
        return "none" if recorded == 0 else "all" if recorded == len(self.known) else "some"

    def _key(self, rows: Tensor, resets: Tensor | None, parts: int) -> tuple[object, ...]:
        return (*rows.shape, resets is None, parts, self.size())

    def _first(self, rows: Tensor, resets: Tensor | None, parts: int) -> Tensor:
        """The plain step; then the graph is recorded and has to give the same."""
        drawn = _generator_state(rows.device)
        loss = self.plain(rows, resets, parts)
        expected = [p.grad for p in self.parameters]
        buffers = [buffer.clone() for buffer in self.buffers]
        key = self._key(rows, resets, parts)
        self.known[key] = None
        shape = "x".join(str(n) for n in rows.shape)
        self._put([None] * len(expected))
        try:
            _set_generator_state(rows.device, drawn)
            recorded = self._record(rows.clone(), _cloned(resets), parts)
            _set_generator_state(rows.device, drawn)
            recorded.run(rows, resets)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            self.told(f"steps of {shape} tokens are not recorded as a graph: {reason}")
        else:
            off = _difference([loss, *expected], [recorded.loss, *recorded.gradients])
            if off <= SAME:
                self.known[key] = recorded
                self.told(f"steps of {shape} tokens go by a graph: it differs by {off:.1e}")
            else:
                self.told(
                    f"steps of {shape} tokens stay plain: their graph differs by {off:.1e} of a "
                    f"gradient's norm, more than {SAME:g}"
                )
        self._put(expected)
        with torch.no_grad():
            for buffer, value in zip(self.buffers, buffers, strict=True):
                buffer.copy_(value)
        return loss

    def _record(self, rows: Tensor, resets: Tensor | None, parts: int) -> _Recorded:
        loss, replay = self.record(lambda: self.bare(rows, resets, parts))
        gradients = [p.grad for p in self.parameters]
        return _Recorded(rows=rows, resets=resets, loss=loss, gradients=gradients, replay=replay)

    def _put(self, gradients: Sequence[Tensor | None]) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient


class CudaRecorder:
    """Records on a stream of its own; all graphs of a run share memory for what a step drops."""

    def __init__(self) -> None:
        self.pool: Any = None

    def __call__(self, step: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        """
        Raises:
            RuntimeError: the step does what no graph can hold, as reading a value on the host.
        """
        graph = torch.cuda.CUDAGraph()
        # Only this thread is watched: the one that reads ahead copies to the device meanwhile.
        recording = torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local")
        with _same_stream_after(), recording:
            result = step()
        self.pool = graph.pool()
        return result, graph.replay


@contextlib.contextmanager
def _same_stream_after() -> Iterator[None]:
    """torch leaves its recording stream in place where the end of a recording raises."""
    stream = torch.cuda.current_stream()
    try:
        yield
    finally:
        torch.cuda.set_stream(stream)


def _generator_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_generator_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def _cloned(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.clone()


def _difference(expected: Sequence[Tensor | None], found: Sequence[Tensor | None]) -> float:
    """The largest difference, in its tensor's norm; infinite where one has what the other lacks."""
    worst = 0.0
    for a, b in zip(expected, found, strict=True):
        if a is None or b is None:
            if a is not b:
                return float("inf")
            continue
        norm, off = float(a.float().norm()), float((a.float() - b.float()).norm())
        if not off <= worst * norm:  # also where off is not a number
            worst = off / norm if norm > 0 and off == off else float("inf")
    return worst
