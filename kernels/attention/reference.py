"""Causal attention written out: the truth of its fast forms."""

import math

import torch
from torch import Tensor


def visible(
    queries: int, keys: int, first: Tensor | None, window: int, device: torch.device | None = None
) -> Tensor:
    """Which keys each query sees, (1 or B, T, S) bool: the last key stands at the last query.

    Args:
        first: (B, T), the place among the keys where each query's document begins; None: all one.
        window: the latest keys that are seen, the query's own included; 0: all.
        device: where to; None: where `first` is.
    """
    if device is None and first is not None:
        device = first.device
    key = torch.arange(keys, device=device)
    place = torch.arange(keys - queries, keys, device=device)[:, None]
    seen = (key <= place)[None]
    if window:
        seen = seen & (key > place - window)
    return seen if first is None else seen & (key >= first[:, :, None])


def attention_reference(
    query: Tensor, key: Tensor, value: Tensor, *, first: Tensor | None = None, window: int = 0
) -> Tensor:
    """y_t = sum_j p_tj v_j, p_t = softmax_j(q_t·k_j / sqrt(K)) over the keys j that t sees.

    Arguments as of `causal_attention`; computed in the inputs' dtype.
    """
    shared = query.shape[2] // key.shape[2]
    key, value = (x.repeat_interleave(shared, dim=2) for x in (key, value))
    scores = torch.einsum("btnk,bsnk->bnts", query, key) / math.sqrt(query.shape[-1])
    seen = visible(query.shape[1], key.shape[1], first, window, query.device)
    weights = scores.masked_fill(~seen[:, None], -math.inf).softmax(dim=-1)
    return torch.einsum("bnts,bsnv->btnv", weights, value)
