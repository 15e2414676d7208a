"""The two hashes of whatever a run trains on: batches in their order, and a sum apart from it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

_MASK = (1 << 64) - 1
ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: spreads neighbouring places

Stream = TypeVar("Stream")


class RollingHash(ABC, Generic[Stream]):
    """A sha256 chain over the batches of a stream, and a sum modulo 2^64, updated once a step.

    start: what the chain begins with.   dtype: of the values that go into it, little-endian.
    """

    start: ClassVar[bytes]
    dtype: ClassVar[str]

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.step = 0  # the next one expected
        self._chain = sha256(self.start).hexdigest()
        self._sum, self._count = 0, 0

    @abstractmethod
    def summands(self, step: int, batch: np.ndarray) -> np.ndarray:
        """What a batch adds to the sum, uint64, one for each thing that is counted."""

    @property
    def tokens(self) -> str:
        """64 hex digits."""
        return self._chain

    @property
    def text(self) -> str:
        """32 hex digits: the sum, then how many were summed."""
        return f"{self._sum:016x}{self._count:016x}"

    def update(self, step: int, batch: np.ndarray) -> None:
        """Take a step's batch in, as `stream.batch(step)` gives it.

        Raises:
            ValueError: a step out of turn, which would count text twice or not at all.
        """
        if step != self.step:
            raise ValueError(f"the stream hash expects step {self.step} next, not step {step}")
        head = f"{self._chain} {step} {batch.shape}".encode()
        self._chain = sha256(head + batch.astype(self.dtype).tobytes()).hexdigest()
        summands = self.summands(step, batch)
        self._sum = (self._sum + int(summands.sum())) & _MASK
        self._count += len(summands)
        self.step += 1

    def state(self) -> dict[str, Any]:
        """What `from_state` needs to go on, as JSON-able values."""
        return {"step": self.step, "tokens": self._chain, "text": self.text}

    @classmethod
    def from_state(cls, stream: Stream, state: Mapping[str, Any]) -> Self:
        """A hash that goes on where `state` was taken."""
        resumed = cls(stream)
        resumed.step, resumed._chain = state["step"], state["tokens"]
        resumed._sum, resumed._count = int(state["text"][:16], 16), int(state["text"][16:], 16)
        return resumed
