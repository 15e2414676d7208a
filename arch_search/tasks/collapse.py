"""Whether a model still predicts text far beyond its training length (arXiv 2410.07145)."""

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from arch_search.data import Split
from arch_search.devices import autocast
from arch_search.model import LanguageModel
from arch_search.state_analysis.collapse import FACTOR, find_collapse, in_buckets
from arch_search.state_analysis.inspection import losses_in_pieces
from arch_search.state_analysis.prompts import TextSource, of_split
from arch_search.tasks.base import Evaluation, EvaluationContext, Task


@dataclass(frozen=True, kw_only=True, slots=True)
class CollapseOptions:
    """multiple: how far, in training lengths; tokens: the same for all arms, instead.

    factor: collapse is loss over this many times the largest within the training length; 2 as
    published, less for small models, which cannot get twice as bad.   documents: rows, at most.
    """

    multiple: PositiveInt = 16
    tokens: NonNegativeInt = 0
    factor: PositiveFloat = FACTOR
    documents: PositiveInt = 16
    prompt: Literal["text", "newlines"] = "text"


class CollapseTask(Task):
    """The largest loss beyond the training length over the largest within, the state carried.

    Losses are means over buckets of half a training length and all rows.
    """

    Options = CollapseOptions
    metrics = ("collapse/found", "collapse/ratio", "collapse/intact_to")

    def check(self, split: Split, sequence_length: int, options: CollapseOptions) -> None:
        length = _length(options, sequence_length)
        if length < 2 * sequence_length or sequence_length < 4:
            raise ValueError(
                f"collapse: {length} tokens for rows of {sequence_length}; expected twice as many "
                "at least, and rows of at least 4 tokens"
            )
        _rows(of_split(split), length, options)

    def __call__(
        self, model: LanguageModel, context: EvaluationContext, options: CollapseOptions
    ) -> Evaluation:
        trained = context.sequence_length
        length = _length(options, trained)
        rows = _rows(of_split(context.split), length, options)
        was_training = model.training
        model.eval()
        with autocast(context.device, context.precision):
            losses = losses_in_pieces(
                model, torch.from_numpy(rows).to(context.device), trained // 4, context.tick
            )
        model.train(was_training)
        first, means = in_buckets(
            losses["first"].tolist(), losses["loss"].tolist(), length=length, size=trained // 2
        )
        found = find_collapse(
            first, means, length=length, training_length=trained, factor=options.factor
        )
        return Evaluation(
            metrics={
                "collapse/found": float(found.found),
                "collapse/ratio": found.ratio,
                "collapse/intact_to": float(found.intact_to),
            },
            tables={"collapse": {"first": first, "loss": means}},
            convention=f"{len(rows)} rows of {length} tokens of {options.prompt}, state carried; "
            f"mean losses of buckets of {trained // 2}, the first left out within the training "
            f"length of {trained}; collapse: over {options.factor:g} times the largest within",
        )


def _length(options: CollapseOptions, sequence_length: int) -> int:
    return options.tokens or options.multiple * sequence_length


def _rows(source: TextSource, length: int, options: CollapseOptions):
    if options.prompt == "newlines":
        return source.newlines(length)
    return source.text(length, options.documents)
