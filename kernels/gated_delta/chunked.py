"""The gated delta rule in chunks of time: a triangular solve a chunk, then a scan over chunks."""

from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from kernels.backends import Candidate, Signature, choose
from kernels.compiling import constant
from kernels.decay import chunk_decays, join_chunks, split_chunks
from kernels.gated_delta.reference import gated_delta_loop
from kernels.probing import disagreement

Backend = Literal["auto", "loop", "chunked", "fla"]

CHUNK = 32  # steps solved together


def gated_delta(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    state: Tensor | None = None,
    *,
    reset: Tensor | None = None,
    chunk: int = CHUNK,
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor]:
    """Scan the gated delta rule over time (Gated DeltaNet, arXiv 2412.06464, Eq. 10).

    S_t = a_t (I - b_t k_t k_tᵀ) S_{t-1} + b_t k_t v_tᵀ;  y_t = S_tᵀ q_t;  a = exp(log_decay)

    Args:
        query, key: (B, T, N, K).   value: (B, T, N, V).   log_decay: (B, T, N), at most 0.
        beta: (B, T, N); in [0, 1], or [0, 2] for negative eigenvalues.
        state: (B, N, K, V); zeros if None.
        reset: (B, T) bool; True where a document begins: the state before that token is zero.
        backend: "loop" is the truth; "chunked" is its parallel form; "fla" needs a GPU; "auto"
            takes fla where it proves right, else "chunked". A single step is always the loop's.
    Returns:
        output (B, T, N, V) in value's dtype and the last state (B, N, K, V), float32 or wider.
    Raises:
        ValueError: the backend's name is wrong.
        BackendUnavailable: a backend asked for by name did not prove right here.
    """
    if backend not in get_args(Backend):
        raise ValueError(f"backend is {backend!r}; expected one of {', '.join(get_args(Backend))}")
    wide = torch.float64 if value.dtype == torch.float64 else torch.float32
    B, T, N, K = query.shape
    single = T == 1
    if not single:
        sizes = (("N", N), ("K", K), ("V", value.shape[-1]))
        backend = _choose(
            backend, device=value.device, dtype=value.dtype, sizes=sizes, batch=B, length=T
        )
        if backend == "fla":
            from kernels.with_fla import gated_delta_fla

            return gated_delta_fla(query, key, value, log_decay, beta, state, reset=reset)
    if state is None:
        state = query.new_zeros(B, N, K, value.shape[-1], dtype=wide)
    inputs = [x.to(wide) for x in (query, key, value, log_decay, beta, state)]
    with torch.autocast(query.device.type, enabled=False):
        if backend == "loop" or single:
            output, last = gated_delta_loop(*inputs, reset=reset)
        else:
            output, last = _chunked(*inputs, reset=reset, chunk=min(chunk, T))
    return output.to(value.dtype), last


@constant
def _choose(backend: Backend, **where: Any) -> Backend:
    """For a `Signature` of these values: a compiler hands over plain ones."""
    fast = (Candidate(name="fla", probe=_probe_fla),)
    chosen = choose("gated_delta", backend, Signature(**where), fast=fast, plain="chunked")
    return cast(Backend, chosen)


def _probe_fla(signature: Signature) -> str | None:
    from kernels.with_fla import gated_delta_fla, why_not

    if (reason := why_not(signature)) is not None:
        return reason
    N, K, V = (size for _, size in signature.sizes)

    def reference(query: Tensor, **rest: Tensor) -> tuple[Tensor, Tensor]:
        state = query.new_zeros(1, N, K, V)
        return _chunked(query, **rest, state=state, reset=None, chunk=CHUNK)

    return disagreement(gated_delta_fla, reference, probe_inputs(signature), signature)


def probe_inputs(signature: Signature) -> dict[str, Tensor]:
    """Inputs as a block gives them: keys of norm 1, decays from none to strong."""
    sizes, generator = dict(signature.sizes), torch.Generator(signature.device).manual_seed(0)
    B, T, N, K, V = signature.batch, signature.length, sizes["N"], sizes["K"], sizes["V"]

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=signature.device)

    query, key = (torch.nn.functional.normalize(normal(B, T, N, K), dim=-1) for _ in range(2))
    inputs = {"query": query, "key": key, "value": normal(B, T, N, V)}
    inputs = {name: x.to(signature.dtype) for name, x in inputs.items()}
    return inputs | {
        "log_decay": -3 * torch.sigmoid(normal(B, T, N)) ** 4,
        "beta": torch.sigmoid(normal(B, T, N)),
    }


def _chunked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    state: Tensor,
    *,
    reset: Tensor | None,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """What step i writes is u_i = b_i (v_i - recall), where recall reads S_0 and earlier u_j:

    (I + A) u = b (v - exp(g) k S_0),  A_ij = b_i exp(g_i - g_j) k_i·k_j for j < i.
    Solved for v and for k at once, so that only the products with S_0 remain serial.
    """
    q, k, v = (split_chunks(x, chunk) for x in (query, key, value))  # (B, N, n, C, K or V)
    g, b = split_chunks(log_decay, chunk), split_chunks(beta, chunk)[..., None]
    starts = None if reset is None else split_chunks(reset[:, :, None], chunk)
    decays = chunk_decays(g, starts)
    strictly = decays.between.tril(-1)
    A = (b * k) @ k.mT * strictly
    right = torch.cat([b * v, b * decays.from_start[..., None] * k], dim=-1)
    solved = torch.linalg.solve_triangular(A, right, upper=False, unitriangular=True)
    u_free, u_state = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    scores = q @ k.mT * decays.between
    q_start = q * decays.from_start[..., None]
    k_end = (k * decays.to_end[..., None]).mT
    whole = decays.from_start[..., -1, None, None]
    outputs = []
    for i in range(q.shape[2]):
        u = u_free[:, :, i] - u_state[:, :, i] @ state
        outputs.append(q_start[:, :, i] @ state + scores[:, :, i] @ u)
        state = whole[:, :, i] * state + k_end[:, :, i] @ u
    return join_chunks(torch.stack(outputs, dim=2), query.shape[1]), state
