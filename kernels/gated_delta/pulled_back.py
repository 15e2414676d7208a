"""Reading an older state through r steps of the gated delta product."""

import torch
from torch import Tensor


def pulled_back(
    query: Tensor, key: Tensor, log_decay: Tensor, beta: Tensor, *, steps: int
) -> Tensor:
    """w_t = A_{t-r+1}ᵀ … A_tᵀ q_t, with A = (I - b_n k_n k_nᵀ) … (I - b_1 k_1 k_1ᵀ) a.

    The delta rule forgets by a matrix, not by a number, so what a state holds of the one r steps
    before is this product. Applied to the query it costs r vectors a token instead of r matrices.

    Args:
        query: (B, r + T, N, K), of which the last T count.   key: (B, r + T, n, N, K).
        log_decay: (B, r + T, N).   beta: (B, r + T, n, N).   steps: r.
    Returns:
        (B, T, N, K), float32 or wider.
    """
    T, n = query.shape[1] - steps, key.shape[2]
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    key, beta, decay = key.to(wide), beta.to(wide), log_decay.to(wide).exp()
    read = query[:, steps:].to(wide)
    for back in range(steps):
        at = slice(steps - back, steps - back + T)
        for j in reversed(range(n)):
            k = key[:, at, j]
            read = read - (beta[:, at, j] * (read * k).sum(dim=-1))[..., None] * k
        read = read * decay[:, at, :, None]
    return read
