"""Collapse: loss beyond the training length rises above what it ever was within."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FACTOR = 2.0  # as published: twice the largest loss inside the training window


@dataclass(frozen=True, kw_only=True, slots=True)
class Collapse:
    """ratio: largest loss beyond the training length over the largest within.

    position: where the first bucket begins whose loss exceeds `factor` times the largest within;
    None if none does up to `length`.
    """

    ratio: float
    factor: float
    position: int | None
    length: int

    @property
    def found(self) -> bool:
        return self.position is not None

    @property
    def intact_to(self) -> int:
        """Tokens up to which nothing collapsed."""
        return self.length if self.position is None else self.position

    def sentence(self) -> str:
        """What was found, in words."""
        far = f"the largest loss beyond the training length is {self.ratio:.2f} times that within"
        if self.position is None:
            return f"No collapse to {self.length:,} tokens: {far} (collapse: over {self.factor:g})."
        return f"Collapse from token {self.position:,} on: {far} (over {self.factor:g})."


def in_buckets(
    first: Sequence[int], losses: Sequence[float], *, length: int, size: int
) -> tuple[list[int], list[float]]:
    """Join neighbouring pieces into buckets of about `size` tokens: where each begins, its mean.

    The noise of single pieces would be taken for collapse: what counts is the largest of many.
    """
    starts, values = np.asarray(first), np.asarray(losses, dtype=np.float64)
    tokens = np.diff(np.append(starts, length))
    bucket = starts // size
    begins = np.unique(bucket, return_index=True)[1]
    means = np.add.reduceat(values * tokens, begins) / np.add.reduceat(tokens, begins)
    return starts[begins].tolist(), means.tolist()


def find_collapse(
    first: Sequence[int], losses: Sequence[float], *, length: int, training_length: int,
    factor: float = FACTOR,
) -> Collapse:  # fmt: skip
    """Look for collapse in a curve of loss by position.

    Args:
        first: where each bucket begins, ascending from 0; the last one ends at `length`.
        losses: mean loss of each bucket. One that is not finite counts as collapse.
    The first bucket is left out of the largest loss within, if there are others: a document's start
    is hard to predict for any model, and would hide a collapse.
    Raises:
        ValueError: no bucket lies within the training length, or none beyond.
    """
    starts, values = np.asarray(first), np.asarray(losses, dtype=np.float64)
    ends = np.append(starts[1:], length)
    within = ends <= training_length
    beyond = starts >= training_length
    if not within.any() or not beyond.any():
        raise ValueError(
            f"{len(starts)} buckets over {length} tokens: none lies "
            f"{'beyond' if within.any() else 'within'} the training length {training_length}; "
            "look further, or in smaller buckets"
        )
    if within.sum() > 1:
        within[0] = False
    largest = values[within].max()
    bad = beyond & ~(values <= factor * largest)
    return Collapse(
        ratio=float(np.where(np.isfinite(values), values, np.inf)[beyond].max() / largest),
        factor=factor,
        position=int(starts[bad][0]) if bad.any() else None,
        length=length,
    )
