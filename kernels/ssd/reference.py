"""Mamba-2's recurrence as a plain loop over time: the truth of the chunked form."""

import torch
from torch import Tensor


def ssd_loop(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    state: Tensor,
    *,
    reset: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Scan over time; the arguments of `ssd_scan`, every head spelled out and the state given.

    S_t = exp(log_decay_t) S_{t-1} + k_t v_tᵀ;  y_t = S_tᵀ q_t
    """
    S, outputs = state, []
    for t in range(query.shape[1]):
        if reset is not None:
            S = torch.where(reset[:, t, None, None, None], 0.0, S)
        S = S * log_decay[:, t].exp()[..., None, None]
        S = S + key[:, t, :, :, None] * value[:, t, :, None, :]
        outputs.append(torch.einsum("bnk,bnkv->bnv", query[:, t], S))
    return torch.stack(outputs, dim=1), S
