"""Training batches of a synthetic task: a pure function of the task, the seed and the step."""

from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any

import numpy as np

from arch_search.data.order import Permutation, mix64
from arch_search.spec import DataSpec
from arch_search.synthetic.base import examples
from arch_search.synthetic.registry import generator, read_task

_MASK = (1 << 64) - 1
_ODD = np.uint64(0x9E3779B97F4A7C15)


class TaskStream:
    """Batches of items; row r of step s is item s · batch + r, or one of a fixed set in turn.

    With `items`, that many are drawn once and seen in a new random order each epoch; without, every
    item is new. With a curriculum rows are shorter at first: see `CurriculumSpec`.
    """

    def __init__(self, data: DataSpec, *, seed: int) -> None:
        """Raises UsageError if `data` names no task."""
        assert data.task is not None
        self.name, self.options = read_task(data.task)
        self.data, self.seed = data, seed
        self._epoch = lru_cache(maxsize=2)(self._draw_epoch)

    def _draw_epoch(self, epoch: int) -> Permutation:
        return Permutation(self.data.items, "task items", self.name, self.seed, epoch)

    def indices(self, step: int) -> np.ndarray:
        """The items of a step, (batch,) int64."""
        rows = np.arange(step * self.data.batch, (step + 1) * self.data.batch)
        if not self.data.items:
            return rows
        epochs, places = np.divmod(rows, self.data.items)
        found = np.empty_like(rows)
        for epoch in np.unique(epochs).tolist():
            found[epochs == epoch] = self._epoch(epoch)(places[epochs == epoch])
        return found

    def length(self, step: int) -> int:
        """Tokens of a row at a step."""
        curriculum, length = self.data.curriculum, self.data.sequence_length
        return length if curriculum is None else curriculum.length(step, length)

    def check(self, step: int) -> None:
        """Raise ValueError if there are no items of the length of that step."""
        generator(self.name).check(self.options, self.length(step))

    def batch(self, step: int) -> np.ndarray:
        """Inputs and targets of a step, counted from 0: (batch, 2, length) int64."""
        found = examples(
            generator(self.name),
            self.name,
            self.options,
            length=self.length(step),
            indices=self.indices(step),
            purpose="train",
            seed=self.seed,
        )
        return np.stack([found.tokens, found.targets], axis=1)


class TaskStreamHash:
    """As `StreamHash`: a chain over the batches in order, and a sum over the items whatever order.

    `text` stands for what is seen apart from its order: the sum of a hash of each row.
    """

    def __init__(self, stream: TaskStream) -> None:
        self.stream = stream
        self.step = 0  # the next one expected
        self._chain = sha256(b"arch_search task stream 1").hexdigest()
        self._sum, self._rows = 0, 0

    @property
    def tokens(self) -> str:
        """64 hex digits."""
        return self._chain

    @property
    def text(self) -> str:
        """32 hex digits: the sum, then the number of rows."""
        return f"{self._sum:016x}{self._rows:016x}"

    def update(self, step: int, batch: np.ndarray) -> None:
        """Take a step's batch in. Raises ValueError for a step out of turn."""
        if step != self.step:
            raise ValueError(f"the stream hash expects step {self.step} next, not step {step}")
        head = f"{self._chain} {step} {batch.shape}".encode()
        self._chain = sha256(head + batch.astype("<i4").tobytes()).hexdigest()
        places = np.arange(1, batch[0].size + 1, dtype=np.uint64) * _ODD
        letters = mix64(batch.reshape(len(batch), -1).astype(np.uint64) + places)
        self._sum = (self._sum + int(mix64(letters.sum(axis=1)).sum())) & _MASK
        self._rows += len(batch)
        self.step += 1

    def state(self) -> dict[str, Any]:
        """What `from_state` needs to go on, as JSON-able values."""
        return {"step": self.step, "tokens": self._chain, "text": self.text}

    @classmethod
    def from_state(cls, stream: TaskStream, state: Mapping[str, Any]) -> "TaskStreamHash":
        """A hash that goes on where `state` was taken."""
        resumed = cls(stream)
        resumed.step, resumed._chain = state["step"], state["tokens"]
        resumed._sum, resumed._rows = int(state["text"][:16], 16), int(state["text"][16:], 16)
        return resumed
