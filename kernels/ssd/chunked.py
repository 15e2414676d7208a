"""Mamba-2's state-space dual form in chunks of time (arXiv 2405.21060, §6)."""

from typing import Literal, get_args

import torch
from torch import Tensor

from kernels.backends import record_backend
from kernels.decay import chunk_decays, join_chunks, split_chunks
from kernels.ssd.reference import ssd_loop

Backend = Literal["auto", "loop", "chunked"]

CHUNK = 64  # steps that see each other through scores rather than through the state


def ssd_scan(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    state: Tensor | None = None,
    *,
    reset: Tensor | None = None,
    chunk: int = CHUNK,
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor]:
    """Scan S_t = exp(log_decay_t) S_{t-1} + k_t v_tᵀ;  y_t = S_tᵀ q_t.

    Mamba-2 with query = C, key = B, value = dt x and log_decay = dt A.

    Args:
        query, key: (B, T, G, K), G divides N; head n reads group n // (N / G).
        value: (B, T, N, V).   log_decay: (B, T, N), at most 0.   state: (B, N, K, V) or None.
        reset: (B, T) bool; True where a document begins: the state before that token is zero.
        backend: "loop" is the truth; "chunked" is its parallel form, and what "auto" takes.
    Returns:
        output (B, T, N, V) in value's dtype and the last state (B, N, K, V), float32 or wider.
    Raises:
        ValueError: the backend's name is wrong, or G does not divide N.
    """
    if backend not in get_args(Backend):
        raise ValueError(f"backend is {backend!r}; expected one of {', '.join(get_args(Backend))}")
    B, T, G, K = query.shape
    N, V = value.shape[2:]
    if N % G:
        raise ValueError(f"query has {G} groups, which do not divide value's {N} heads")
    wide = torch.float64 if value.dtype == torch.float64 else torch.float32
    if state is None:
        state = query.new_zeros(B, N, K, V, dtype=wide)
    q, k, v, g, state = (x.to(wide) for x in (query, key, value, log_decay, state))
    record_backend("ssd", "loop" if backend == "loop" else "chunked")
    with torch.autocast(query.device.type, enabled=False):
        if backend == "loop" or T == 1:
            q, k = (x.repeat_interleave(N // G, dim=2) for x in (q, k))
            output, last = ssd_loop(q, k, v, g, state, reset=reset)
        else:
            output, last = _chunked(q, k, v, g, state, reset=reset, chunk=min(chunk, T))
    return output.to(value.dtype), last


def _chunked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    state: Tensor,
    *,
    reset: Tensor | None,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    repeats = value.shape[2] // query.shape[2]
    q, k, v = (split_chunks(x, chunk) for x in (query, key, value))  # (B, G or N, n, C, K or V)
    starts = None if reset is None else split_chunks(reset[:, :, None], chunk)
    decays = chunk_decays(split_chunks(log_decay, chunk), starts)
    scores = (q @ k.mT).repeat_interleave(repeats, dim=1) * decays.between
    within = scores @ v
    q, k = (x.repeat_interleave(repeats, dim=1) for x in (q, k))
    written = k.mT @ (v * decays.to_end[..., None])  # (B, N, n, K, V)
    whole = decays.from_start[..., -1, None, None]
    before = []
    for i in range(q.shape[2]):
        before.append(state)
        state = whole[:, :, i] * state + written[:, :, i]
    recalled = q @ torch.stack(before, dim=2) * decays.from_start[..., None]
    return join_chunks(within + recalled, query.shape[1]), state
