"""The loss of every token in evaluation, without the logits of all of them at once."""

import torch
from torch import Tensor

from arch_search.model import LanguageModel, next_token_loss
from blocks.base import State

LOGITS = {"cpu": 2**26, "cuda": 2**28}  # elements at once; with a copy in float32 up to 1.5 GiB


def token_losses_and_states(
    model: LanguageModel, tokens: Tensor, targets: Tensor, states: list[State] | None = None
) -> tuple[Tensor, list[State]]:
    """Loss in nats of each target, float32 (B, T), 0 where it is IGNORED; and the states after.

    Args:
        tokens, targets: (B, T) int64.   states: what the piece before returned, one a layer.
    """
    features, after = model.features(tokens, states)
    rows, asked = features.flatten(0, 1), targets.flatten()
    size = max(LOGITS.get(tokens.device.type, LOGITS["cpu"]) // model.spec.vocabulary, 1)
    losses = [
        next_token_loss(model.logits(x), y, reduction="none")
        for x, y in zip(rows.split(size), asked.split(size), strict=True)
    ]
    return torch.cat(losses).view(targets.shape), after
