"""Causal depthwise convolution over time, with the inputs that it still needs carried along."""

import torch
import torch.nn.functional as F
from torch import Tensor


def causal_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    state: Tensor | None = None,
    *,
    reset: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """y_t[c] = bias[c] + sum over j of weight[c, j] x_{t - (W - 1) + j}[c]; the last tap sees x_t.

    Args:
        x: (B, T, C).   weight: (C, W).   bias: (C,) or None.
        state: (B, W - 1, C), the inputs before the first; zeros if None.
        reset: (B, T) bool; True where a document begins: earlier inputs count as zero.
    Returns:
        y (B, T, C) and the last W - 1 inputs of the current document, (B, W - 1, C).
    """
    B, T, _ = x.shape
    lags = weight.shape[1] - 1
    if state is None:
        padded = F.pad(x, (0, 0, lags, 0))
    else:
        padded = torch.cat([state.to(x.dtype), x], dim=1)
    document = None
    if reset is not None:  # the document of each padded position; those carried in have number 0
        document = torch.cat([reset.new_zeros(B, lags), reset], dim=1).cumsum(dim=1)
    weight = weight.to(x.dtype)
    y = x * weight[:, lags]
    for j in range(lags):
        tap = padded[:, j : j + T]
        if document is not None:
            same = document[:, j : j + T] == document[:, lags:]
            tap = tap * same[..., None]
        y = torch.addcmul(y, tap, weight[:, j])
    if bias is not None:
        y = y + bias.to(x.dtype)
    last = padded[:, T:]
    if document is not None:
        last = last * (document[:, T:] == document[:, -1:])[..., None]
    return y, last.clone()  # a view would keep the whole input alive
