"""Gradients of a global batch in pieces that fit into memory; smaller ones when they do not.

What a step learns from stays the same: the global batch, and the order of its tokens.
"""

import gc
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from arch_search.devices import autocast
from arch_search.model import IGNORED, LanguageModel
from arch_search.segments import losses_by_segment

# Only CUDA has an error type of its own; these are what the CPU's allocators say.
CPU_SAYS = ("DefaultCPUAllocator", "not enough memory", "std::bad_alloc", "Cannot allocate memory")


def accumulate_gradients(
    model: LanguageModel,
    tokens: Tensor,
    micro_batch: int,
    precision: str,
    resets: Tensor | None = None,
    *,
    truncate: int = 0,
) -> Tensor:
    """Gradients of the mean loss over a global batch, added up over its pieces.

    Args:
        tokens: the global batch, whatever the pieces: (B, T + 1) int64 of text, or (B, 2, T) of a
            task, its inputs and the targets, IGNORED where nothing is asked.
        micro_batch: sequences in one piece; 0 takes all at once.
        resets: (B, T) bool, where nothing before is seen; None: rows are seen whole.
        truncate: gradients reach back within segments of so many tokens; 0: through the row.
    Returns:
        The mean loss in nats a target, a detached scalar on the device, without what routers add.
    """
    inputs, targets = inputs_and_targets(tokens)
    asked = targets.numel() if tokens.ndim == 2 else (targets != IGNORED).sum()
    total = torch.zeros((), device=tokens.device)
    size = micro_batch or len(tokens)
    for start in range(0, len(tokens), size):
        piece = slice(start, start + size)
        reset = None if resets is None else resets[piece]
        of_batch = len(inputs[piece]) / len(tokens)
        segments = losses_by_segment(model, inputs[piece], targets[piece], reset, truncate)
        while (segment := _next(segments, tokens, precision)) is not None:
            loss, share = segment[0] / asked, segment[1]
            routing = model.router_loss()
            (loss if routing is None else loss + routing * of_batch * share).backward()
            total += loss.detach()
    return total


def _next(
    segments: Iterator[tuple[Tensor, float]], tokens: Tensor, precision: str
) -> tuple[Tensor, float] | None:
    """Compute the next segment: forward in the precision, while backward runs outside of it."""
    with autocast(tokens.device, precision):
        return next(segments, None)


def inputs_and_targets(batch: Tensor) -> tuple[Tensor, Tensor]:
    """(B, T) each: of text, (B, T + 1), the next tokens are the targets; a task gives its own."""
    return (batch[:, :-1], batch[:, 1:]) if batch.ndim == 2 else (batch[:, 0], batch[:, 1])


def accumulate_within_memory(
    model: LanguageModel,
    tokens: Tensor,
    micro_batch: int,
    precision: str,
    resets: Tensor | None = None,
    *,
    halved: Callable[[int], None],
    truncate: int = 0,
) -> Tensor:
    """As `accumulate_gradients`; out of memory, again from the step's start with smaller pieces.

    Args:
        halved: told the new size of a piece each time; it holds for later steps, too.
    Raises:
        torch.OutOfMemoryError, RuntimeError, MemoryError: a single sequence does not fit.
    """
    size = micro_batch or len(tokens)
    while True:
        try:
            return accumulate_gradients(model, tokens, size, precision, resets, truncate=truncate)
        except (RuntimeError, MemoryError) as error:
            if size == 1 or not is_out_of_memory(error):
                raise
        # Out here the error is gone, and with it the frames that held the activations.
        model.zero_grad(set_to_none=True)
        _release()
        size = (size + 1) // 2
        halved(size)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device, or the host, has no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in CPU_SAYS)


def _release() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
