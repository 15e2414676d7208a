"""Sums a segment's shares on a stream of their own, while the next segment is scanned.

A scan is bound by latency and leaves memory idle; a sum only moves memory. With two sets of shares
in turn neither waits for the other, and the order within each sum stays what it is.
"""

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor


class Sums:
    """The shares of one segment after the other, and the stream on which they are summed.

    A stream's sums come in the order of `run`; `finish` lets the scans' stream wait for them, so
    that their memory may be given back. Without `beside` everything stays on the one stream.
    """

    def __init__(self, device: torch.device, *, beside: bool) -> None:
        self.device, self.beside = device, beside
        self.buffers: list[list[Tensor]] = [[], []]
        self.summed: list[torch.cuda.Event | None] = [None, None]
        self.turn = 0

    def shares(self, wanted: list[tuple[tuple[int, ...], torch.dtype]]) -> list[Tensor]:
        """Uninitialised tensors of these shapes, once the set's earlier shares are summed."""
        event = self.summed[self.turn]
        if event is not None:
            event.wait(torch.cuda.current_stream(self.device))
        held = self.buffers[self.turn]
        counts = [math.prod(shape) for shape, _ in wanted]
        if any(x.numel() < n for x, n in zip(held, counts, strict=bool(held))) or not held:
            held.clear()  # before more is taken
            held += [
                torch.empty(n, dtype=dtype, device=self.device)
                for n, (_, dtype) in zip(counts, wanted, strict=True)
            ]
        return [x[:n].view(shape) for x, n, (shape, _) in zip(held, counts, wanted, strict=True)]

    def run(self, add: Callable[..., None], *arguments: object) -> None:
        """`add(*arguments)`, behind what the scans' stream has been given so far."""
        if not self.beside:
            add(*arguments)
            return
        side = _stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            add(*arguments)
        self.summed[self.turn] = event = torch.cuda.Event()
        event.record(side)
        self.turn = 1 - self.turn

    def finish(self) -> None:
        """What the scans' stream does next comes after every sum."""
        if self.beside:
            torch.cuda.current_stream(self.device).wait_stream(_stream(self.device))


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
