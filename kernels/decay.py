"""Products of decays inside chunks of time: what every chunked linear recurrence needs."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Decays:
    """Products of the decays of one chunk of C steps, zero across the start of a document."""

    between: Tensor  # (..., C, C): from after step j to after step i, for j <= i, else 0
    from_start: Tensor  # (..., C): from before the chunk to after step i
    to_end: Tensor  # (..., C): from after step j to the chunk's end


def chunk_decays(log_decay: Tensor, reset: Tensor | None) -> Decays:
    """Decays from log_decay (..., C), at most 0, and reset (..., C), True where documents begin."""
    total = log_decay.cumsum(dim=-1)
    C = total.shape[-1]
    seen = torch.ones(C, C, dtype=torch.bool, device=total.device).tril()
    if reset is None:
        # masked before exp: above the diagonal the difference is positive and could overflow
        between = (total[..., :, None] - total[..., None, :]).masked_fill(~seen, -torch.inf).exp()
        return Decays(
            between=between, from_start=total.exp(), to_end=(total[..., -1:] - total).exp()
        )
    document = reset.cumsum(dim=-1)
    seen = seen & (document[..., :, None] == document[..., None, :])
    between = (total[..., :, None] - total[..., None, :]).masked_fill(~seen, -torch.inf).exp()
    return Decays(
        between=between,
        from_start=total.exp() * (document == 0),
        to_end=(total[..., -1:] - total).exp() * (document == document[..., -1:]),
    )


def padded_length(length: int, chunk: int) -> int:
    """The steps that a chunked scan of `length` steps runs: whole chunks, none longer than it."""
    chunk = min(chunk, length)
    return -(-length // chunk) * chunk


def split_chunks(x: Tensor, chunk: int) -> Tensor:
    """(B, T, N, ...) -> (B, N, T / chunk rounded up, chunk, ...), padded with zeros at the end."""
    B, T, N, *rest = x.shape
    short = -T % chunk
    if short:
        x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, short))
    return x.reshape(B, (T + short) // chunk, chunk, N, *rest).movedim(3, 1)


def join_chunks(x: Tensor, length: int) -> Tensor:
    """(B, N, n, chunk, ...) -> (B, length, N, ...): the inverse of `split_chunks`."""
    return x.movedim(1, 3).flatten(1, 2)[:, :length]
