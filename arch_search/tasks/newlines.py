"""The newlines probe: a text that says nothing, so that its length alone is left to go wrong.

The prompt is one newline token again and again (arXiv 2410.07145, figure 1 and its code). A model
that cannot forget gets worse than chance some time after its training length.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, NonNegativeInt, PositiveInt

from arch_search.data import Split, spellings_of
from arch_search.devices import autocast
from arch_search.losses import token_losses_and_states
from arch_search.model import LanguageModel
from arch_search.tasks.base import Evaluation, EvaluationContext, Task


@dataclass(frozen=True, kw_only=True, slots=True)
class NewlinesOptions:
    """multiple: how far, in training lengths; piece: tokens computed at once (0: the length)."""

    multiple: Annotated[int, Field(ge=2)] = 16
    buckets: PositiveInt = 64
    piece: NonNegativeInt = 0


class Newlines(Task):
    """Loss in nats of each newline that follows only newlines; chance is ln of the vocabulary."""

    Options = NewlinesOptions
    metrics = ("newlines/loss_in_training_length", "newlines/loss_worst_beyond")

    def check(self, split: Split, sequence_length: int, options: NewlinesOptions) -> None:
        _newline(split)
        if options.buckets < options.multiple:
            raise ValueError(
                f"newlines: multiple is {options.multiple} and buckets {options.buckets}; expected "
                "no fewer buckets than that"
            )

    def __call__(
        self, model: LanguageModel, context: EvaluationContext, options: NewlinesOptions
    ) -> Evaluation:
        length = context.sequence_length
        total = options.multiple * length
        newline = _newline(context.split)
        tokens = np.full(total + 1, newline, dtype=np.int64)
        tokens[0] = context.split.manifest.end_of_document
        nats = carried_losses(model, tokens, options.piece or length, context)
        edges = np.unique(np.linspace(0, total, options.buckets + 1).round().astype(int)).tolist()
        spans = list(itertools.pairwise(edges))
        rows = {
            "first": [first for first, _ in spans],
            "last": [stop - 1 for _, stop in spans],
            "loss": [float(nats[first:stop].mean()) for first, stop in spans],
            "chance": [math.log(context.split.manifest.vocabulary)] * len(spans),
        }
        beyond = [loss for loss, (first, _) in zip(rows["loss"], spans, strict=True)
                  if first >= length]  # fmt: skip
        return Evaluation(
            metrics={
                "newlines/loss_in_training_length": float(nats[:length].mean()),
                "newlines/loss_worst_beyond": max(beyond),
            },
            tables={"newlines": rows},
            convention=f"one sequence of {total} newline tokens after the end-of-document token, "
            f"its state carried; worst: of {len(beyond)} buckets beyond {length} tokens",
        )


@torch.inference_mode()
def carried_losses(
    model: LanguageModel, tokens: np.ndarray, piece: int, context: EvaluationContext
) -> np.ndarray:
    """Loss in nats of every token but the first of one sequence, as float64, computed in pieces.

    The state is carried from piece to piece, so that it is the loss of the whole sequence.
    """
    was_training = model.training
    model.eval()
    states, losses = None, []
    for start in range(0, len(tokens) - 1, piece):
        context.tick()
        stop = min(start + piece, len(tokens) - 1)
        part = torch.from_numpy(tokens[None, start : stop + 1]).to(context.device)
        with autocast(context.device, context.precision):
            loss, states = token_losses_and_states(model, part[:, :-1], part[:, 1:], states)
        losses.append(loss[0].double().cpu().numpy())
    model.train(was_training)
    return np.concatenate(losses)


def _newline(split: Split) -> int:
    spellings = spellings_of(split.manifest)
    if b"\n" not in spellings:
        raise ValueError(
            f"newlines: no token of {split.manifest.tokenizer} spells one newline; leave this "
            "evaluation out, or use a tokenizer that has one"
        )
    return spellings.index(b"\n")
