"""Mamba-2's state-space dual form in chunks of time (arXiv 2405.21060, §6)."""

from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from kernels.backends import Candidate, Signature, choose
from kernels.compiling import constant
from kernels.decay import chunk_decays, join_chunks, split_chunks
from kernels.probing import disagreement
from kernels.ssd.reference import ssd_loop

Backend = Literal["auto", "loop", "chunked", "mamba_ssm"]

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
        backend: "loop" is the truth; "chunked" is its parallel form; "mamba_ssm" needs a GPU;
            "auto" takes that where it proves right, else "chunked". A single step is the loop's.
    Returns:
        output (B, T, N, V) in value's dtype and the last state (B, N, K, V), float32 or wider.
    Raises:
        ValueError: the backend's name is wrong, or G does not divide N.
        BackendUnavailable: a backend asked for by name did not prove right here.
    """
    if backend not in get_args(Backend):
        raise ValueError(f"backend is {backend!r}; expected one of {', '.join(get_args(Backend))}")
    B, T, G, K = query.shape
    N, V = value.shape[2:]
    if N % G:
        raise ValueError(f"query has {G} groups, which do not divide value's {N} heads")
    if T > 1:
        sizes = (("G", G), ("N", N), ("K", K), ("V", V))
        backend = _choose(
            backend, device=query.device, dtype=query.dtype, sizes=sizes, batch=B, length=T
        )
        if backend == "mamba_ssm":
            from kernels.with_mamba_ssm import ssd_mamba

            return ssd_mamba(query, key, value, log_decay, state, reset=reset)
    wide = torch.float64 if value.dtype == torch.float64 else torch.float32
    if state is None:
        state = query.new_zeros(B, N, K, V, dtype=wide)
    q, k, v, g, state = (x.to(wide) for x in (query, key, value, log_decay, state))
    with torch.autocast(query.device.type, enabled=False):
        if backend == "loop" or T == 1:
            q, k = (x.repeat_interleave(N // G, dim=2) for x in (q, k))
            output, last = ssd_loop(q, k, v, g, state, reset=reset)
        else:
            output, last = _chunked(q, k, v, g, state, reset=reset, chunk=min(chunk, T))
    return output.to(value.dtype), last


@constant
def _choose(backend: Backend, **where: Any) -> Backend:
    """For a `Signature` of these values: a compiler hands over plain ones."""
    fast = (Candidate(name="mamba_ssm", probe=_probe_mamba),)
    chosen = choose("ssd", backend, Signature(**where), fast=fast, plain="chunked")
    return cast(Backend, chosen)


def _probe_mamba(signature: Signature) -> str | None:
    from kernels.with_mamba_ssm import ssd_mamba, why_not

    if (reason := why_not(signature)) is not None:
        return reason
    sizes = dict(signature.sizes)
    N, K, V = sizes["N"], sizes["K"], sizes["V"]

    def reference(query: Tensor, **rest: Tensor) -> tuple[Tensor, Tensor]:
        state = query.new_zeros(1, N, K, V)
        return _chunked(query, **rest, state=state, reset=None, chunk=CHUNK)

    return disagreement(ssd_mamba, reference, probe_inputs(signature), signature)


def probe_inputs(signature: Signature) -> dict[str, Tensor]:
    """Inputs as a block gives them: decays from none to strong."""
    sizes, generator = dict(signature.sizes), torch.Generator(signature.device).manual_seed(0)
    B, T, G, N = signature.batch, signature.length, sizes["G"], sizes["N"]

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=signature.device)

    inputs = {name: sizes["K"] ** -0.5 * normal(B, T, G, sizes["K"]) for name in ("query", "key")}
    inputs["value"] = normal(B, T, N, sizes["V"])
    inputs = {name: x.to(signature.dtype) for name, x in inputs.items()}
    return inputs | {"log_decay": -3 * torch.sigmoid(normal(B, T, N)) ** 4}


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
