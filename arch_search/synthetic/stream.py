"""Training batches of a synthetic task: a pure function of the task, the seed and the step."""

from functools import lru_cache

import numpy as np

from arch_search.data.order import Permutation, mix64
from arch_search.data.rolling_hash import ODD, RollingHash
from arch_search.spec import DataSpec
from arch_search.synthetic.base import examples
from arch_search.synthetic.registry import generator, read_task


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


class TaskStreamHash(RollingHash[TaskStream]):
    """As `StreamHash`: a chain over the batches in order, and a sum over the items whatever order.

    `text` stands for what is seen apart from its order: the sum of a hash of each row.
    """

    start = b"arch_search task stream 1"
    dtype = "<i4"  # a target that is not scored is negative

    def summands(self, step: int, batch: np.ndarray) -> np.ndarray:
        """A hash of each row."""
        places = np.arange(1, batch[0].size + 1, dtype=np.uint64) * ODD
        letters = mix64(batch.reshape(len(batch), -1).astype(np.uint64) + places)
        return mix64(letters.sum(axis=1))
