"""Rows in parts: shorter ones early in training, and segments that gradients do not cross."""

from collections.abc import Iterator

from torch import Tensor

from arch_search.model import LanguageModel
from arch_search.spec import DataSpec
from blocks.base import State


def row_length(data: DataSpec, step: int) -> int:
    """Tokens in a row of a corpus at a step: fewer early, under a curriculum."""
    if data.curriculum is None or data.task is not None:
        return data.sequence_length  # a task makes shorter items itself
    return data.curriculum.length(step, data.sequence_length)


def check_curriculum(data: DataSpec) -> None:
    """Raise ValueError unless every length of the curriculum divides a row of a corpus."""
    if data.curriculum is None or data.task is not None:
        return
    whole, first = data.sequence_length, data.curriculum.first
    doubled = whole // first
    if whole % first or doubled & (doubled - 1):
        raise ValueError(
            f"curriculum.first {first}: rows of {whole} tokens are cut into pieces whose length "
            f"doubles up to the row's; give {whole} divided by a power of two"
        )


def cut_rows(
    tokens: Tensor, resets: Tensor | None, length: int
) -> tuple[Tensor, Tensor | None, int]:
    """Each row of a batch as rows of `length` tokens that know nothing of each other.

    What is learned from stays the same tokens in the same order, so that runs with and without a
    curriculum share their stream.

    Args:
        tokens: (B, T + 1), `length` divides T.   resets: (B, T) or None.
    Returns:
        (B n, length + 1), (B n, length) or None, and n = T / length.
    """
    whole = tokens.shape[1] - 1
    if tokens.ndim != 2 or length == whole:
        return tokens, resets, 1
    cut = tokens.unfold(1, length + 1, length).flatten(0, 1)
    return cut, None if resets is None else resets.reshape(-1, length), whole // length


def first_segment(
    tokens: Tensor, resets: Tensor | None, truncate: int
) -> tuple[Tensor, Tensor | None]:
    """As much of a batch as one forward pass sees: what a warm-up has to run."""
    if not truncate:
        return tokens, resets
    last = truncate + 1 if tokens.ndim == 2 else truncate
    return tokens[..., :last], None if resets is None else resets[:, :truncate]


def losses_by_segment(
    model: LanguageModel, inputs: Tensor, targets: Tensor, reset: Tensor | None, truncate: int
) -> Iterator[tuple[Tensor, float]]:
    """The loss (a sum, in nats) of each segment of (B, T), and its share of the row.

    Between segments the state is carried and its history cut off. Go backward before you go on, so
    that the memory of a segment is free for the next.
    """
    whole = inputs.shape[1]
    if not truncate or truncate >= whole:
        yield model.loss(inputs, targets, reset=reset), 1.0
        return
    states: list[State] | None = None
    for first in range(0, whole, truncate):
        at = slice(first, min(first + truncate, whole))
        loss, states = model.loss_and_states(
            inputs[:, at], targets[:, at], states, reset=None if reset is None else reset[:, at]
        )
        states = [{name: part.detach() for name, part in state.items()} for state in states]
        yield loss, (at.stop - at.start) / whole
