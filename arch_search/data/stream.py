"""The order in which a run sees its tokens: a pure function of the data, the seed and the step."""

from functools import lru_cache

import numpy as np

from arch_search.data.order import Permutation, keyed_words
from arch_search.data.shards import Split
from arch_search.errors import UsageError


class TrainingStream:
    """Batches of windows from a split, random access by step.

    The split is a ring. An epoch cuts it, from a random point, into ⌊tokens / T⌋ windows of T
    tokens and takes them in a random order; the fewer than T tokens left over are others in each
    epoch. Each row carries one token more, the target of its last one, so every token that is
    covered is a target once an epoch. Rows number on through steps and epochs, so the same rows
    come in the same order whatever the batch; nothing depends on workers or on where a run began.
    """

    def __init__(self, split: Split, *, sequence_length: int, batch: int, seed: int) -> None:
        """Read `batch` windows of T = `sequence_length` tokens a step.

        Raises:
            UsageError: a size below 1, or a split shorter than a window.
        """
        if sequence_length < 1 or batch < 1:
            raise UsageError(
                f"sequence_length and batch must be at least 1, not {sequence_length} and {batch}"
            )
        if len(split.tokens) <= sequence_length:
            raise UsageError(
                f"the {split.name} split of {split.manifest.corpus!r} has {len(split.tokens)} "
                f"tokens, too few for a sequence_length of {sequence_length}"
            )
        self.split, self.seed = split, seed
        self.sequence_length, self.batch_size = sequence_length, batch
        self.windows_per_epoch = len(split.tokens) // sequence_length
        self._hash = split.manifest.hash  # costs more than a batch
        self._epoch = lru_cache(maxsize=4)(self._draw_epoch)
        self._borders = lru_cache(maxsize=1)(self._find_borders)

    def _draw_epoch(self, epoch: int) -> tuple[int, Permutation]:
        key = (self._hash, self.split.name, self.seed, epoch)
        high, low = keyed_words(2, "offset", *key)
        offset = (high << 64 | low) % len(self.split.tokens)
        return offset, Permutation(self.windows_per_epoch, *key)

    def starts(self, step: int) -> np.ndarray:
        """Where in the split each row of a step begins, (batch,) int64."""
        rows = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epochs, places = np.divmod(rows, self.windows_per_epoch)
        starts = np.empty(self.batch_size, np.int64)
        for epoch in np.unique(epochs):
            offset, permutation = self._epoch(int(epoch))
            here = epochs == epoch
            starts[here] = offset + permutation(places[here]) * self.sequence_length
        return starts % len(self.split.tokens)

    def batch(self, step: int) -> np.ndarray:
        """The tokens of a step, counted from 0: (batch, sequence_length + 1) int64."""
        places = self.starts(step)[:, None] + np.arange(self.sequence_length + 1)
        return self.split.tokens[places % len(self.split.tokens)].astype(np.int64)

    def resets(self, step: int) -> np.ndarray:
        """Where nothing before may be seen, for packing with state reset: (batch, T) bool.

        That is at the end-of-document token that stands before a document, from which its first
        token is predicted, as in evaluation; or at its first token if there is none before it.
        """
        places = self.starts(step)[:, None] + np.arange(self.sequence_length)
        borders = self._borders()
        found = np.searchsorted(borders, places := places % len(self.split.tokens))
        return borders[np.minimum(found, len(borders) - 1)] == places

    def _find_borders(self) -> np.ndarray:
        begins = self.split.offsets[:-1]
        before = (begins - 1) % len(self.split.tokens)
        closed = self.split.tokens[before] == self.split.manifest.end_of_document
        return np.unique(np.where(closed, before, begins))


def first_difference(one: TrainingStream, other: TrainingStream, *, steps: int) -> int | None:
    """The first step at which two streams differ, or None if `steps` steps are equal."""
    for step in range(steps):
        if not np.array_equal(one.batch(step), other.batch(step)):
            return step
    return None
