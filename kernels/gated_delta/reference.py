"""The gated delta rule as a plain loop over time: the truth of the chunked form."""

import torch
from torch import Tensor


def gated_delta_loop(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    state: Tensor,
    *,
    reset: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Scan over time; the arguments of `gated_delta` with the state given.

    S' = exp(log_decay_t) S_{t-1};  S_t = S' + beta_t k_t (v_t - S'ᵀ k_t)ᵀ;  y_t = S_tᵀ q_t
    """
    S, outputs = state, []
    for t in range(query.shape[1]):
        if reset is not None:
            S = torch.where(reset[:, t, None, None, None], 0.0, S)
        S = S * log_decay[:, t].exp()[..., None, None]
        recalled = torch.einsum("bnk,bnkv->bnv", key[:, t], S)
        error = (value[:, t] - recalled) * beta[:, t, :, None]
        S = S + key[:, t, :, :, None] * error[:, :, None, :]
        outputs.append(torch.einsum("bnk,bnkv->bnv", query[:, t], S))
    return torch.stack(outputs, dim=1), S
