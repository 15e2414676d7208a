"""The gated delta product: several delta-rule corrections a token (arXiv 2502.10297)."""

from torch import Tensor

from kernels.gated_delta.chunked import CHUNK, Backend, gated_delta


def gated_delta_product(
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
    """Scan n corrections a token, of which the first also decays and the last is read.

    S <- a_t S;  then for j < n: S <- (I - b_j k_j k_jᵀ) S + b_j k_j v_jᵀ;  y_t = Sᵀ q_t

    Args:
        query: (B, T, N, K).   key: (B, T, n, N, K).   value: (B, T, n, N, V).
        log_decay: (B, T, N), at most 0.   beta: (B, T, n, N).
        state, reset, chunk, backend: as in `gated_delta`; a chunk counts corrections.
    Returns:
        output (B, T, N, V) in value's dtype and the last state (B, N, K, V).
    """
    n = key.shape[2]
    if n == 1:
        key, value, beta = key[:, :, 0], value[:, :, 0], beta[:, :, 0]
        return gated_delta(
            query, key, value, log_decay, beta, state, reset=reset, chunk=chunk, backend=backend
        )
    y, last = gated_delta(
        _at(query, n, n - 1), key.flatten(1, 2), value.flatten(1, 2), _at(log_decay, n, 0),
        beta.flatten(1, 2), state, reset=None if reset is None else _at(reset, n, 0),
        chunk=chunk, backend=backend,
    )  # fmt: skip
    return y[:, n - 1 :: n], last


def _at(x: Tensor, n: int, j: int) -> Tensor:
    """(B, T, ...) -> (B, T n, ...): x at correction j of each token, zeros at the others."""
    spread = x.new_zeros(x.shape[0], x.shape[1], n, *x.shape[2:])
    spread[:, :, j] = x
    return spread.flatten(1, 2)
