"""Bits per byte and perplexities by document, and loss by position beyond the training length.

Conventions (stated with every result): each scored byte is predicted once; a document, or the
beginning of it that is scored, is cut into disjoint windows, each beginning with the one token
before it as context; the first byte is predicted from the end-of-document token, which itself is
never scored.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from arch_search.data import Split, spellings_of
from arch_search.devices import autocast
from arch_search.losses import token_losses_and_states
from arch_search.model import IGNORED, LanguageModel
from arch_search.tasks.base import Evaluation, EvaluationContext, Task

TOKENS_PER_FORWARD = 16_384
FEWEST_DOCUMENTS = 32  # that a curve of validation losses goes over, if there are so many
MULTIPLES = (1, 2, 4, 8)  # of the training length
UNITS = ("byte", "token", "word")  # that a perplexity may be counted in


@torch.inference_mode()
def token_losses(
    model: LanguageModel, windows: Sequence[np.ndarray], context: EvaluationContext
) -> list[np.ndarray]:
    """Loss in nats of every token but the first of each window, as float32 arrays.

    Windows are padded on the right, where a causal model cannot see it; a window's losses do not
    depend on what it is batched with (up to rounding).
    """
    was_training = model.training
    model.eval()
    losses: list[np.ndarray] = []
    longest = max(len(window) for window in windows)
    for group in _groups(windows, max(TOKENS_PER_FORWARD // longest, 1)):
        context.tick()
        tokens, targets = _pad(group, context.device)
        with autocast(context.device, context.precision):
            loss, _ = token_losses_and_states(model, tokens, targets)
        found = loss.cpu().numpy()
        losses += [row[: len(window) - 1] for row, window in zip(found, group, strict=True)]
    model.train(was_training)
    return losses


def _groups(windows: Sequence[np.ndarray], size: int) -> Iterator[Sequence[np.ndarray]]:
    for start in range(0, len(windows), size):
        yield windows[start : start + size]


def _pad(windows: Sequence[np.ndarray], device: torch.device) -> tuple[Tensor, Tensor]:
    length = max(len(window) for window in windows) - 1
    tokens = np.zeros((len(windows), length), dtype=np.int64)
    targets = np.full((len(windows), length), IGNORED, dtype=np.int64)
    for row, window in enumerate(windows):
        tokens[row, : len(window) - 1] = window[:-1]
        targets[row, : len(window) - 1] = window[1:]
    return torch.from_numpy(tokens).to(device), torch.from_numpy(targets).to(device)


def _document(split: Split, index: int, limit: int | None) -> np.ndarray:
    """The end-of-document token, then at most `limit` tokens of the document."""
    body = split.document(index)[:limit]
    return np.concatenate([[split.manifest.end_of_document], body])


def _token_bytes(split: Split) -> np.ndarray:
    """How many UTF-8 bytes each token of the vocabulary spells."""
    return np.array([len(spelling) for spelling in spellings_of(split.manifest)])


def perplexity(nats: float, count: int) -> float:
    """exp(nats / count); at most e^700, so that a model gone wrong still has a finite number."""
    return math.exp(min(nats / max(count, 1), 700.0))


@dataclass(frozen=True, kw_only=True, slots=True)
class PerplexityOptions:
    """window: tokens seen at once (0: the training length).

    tokens_per_document: only a document's first so many are scored; 0 for all.
    """

    window: NonNegativeInt = 0
    tokens_per_document: NonNegativeInt = 8_192
    documents: NonNegativeInt = 0  # the first so many of the split; 0 for all


class Perplexity(Task):
    """Bits per byte over the validation documents, and three perplexities, from one pass.

    bits per byte = Σ nats / (ln 2 · Σ bytes), which any tokenizers share; byte perplexity =
    2 ^ bits per byte; token and word perplexity = exp(Σ nats / tokens), exp(Σ nats / words), words
    being what white space divides. Token perplexities of unequal tokenizers do not compare.
    """

    Options = PerplexityOptions
    metrics = ("val/bits_per_byte", *(f"val/{unit}_perplexity" for unit in UNITS))

    def __call__(
        self, model: LanguageModel, context: EvaluationContext, options: PerplexityOptions
    ) -> Evaluation:
        split, spellings = context.split, spellings_of(context.split.manifest)
        window = options.window or context.sequence_length
        count = min(options.documents or split.documents, split.documents)
        windows, owners = [], []
        counts = {unit: np.zeros(count, dtype=np.int64) for unit in UNITS}
        for index in range(count):
            tokens = _document(split, index, options.tokens_per_document or None)
            text = b"".join([spellings[token] for token in tokens[1:]])
            sizes = (len(text), len(tokens) - 1, len(text.split()))
            for unit, size in zip(UNITS, sizes, strict=True):
                counts[unit][index] = size
            for start in range(0, len(tokens) - 1, window):
                windows.append(tokens[start : start + window + 1])
                owners.append(index)
        nats = np.zeros(count)
        for owner, loss in zip(owners, token_losses(model, windows, context), strict=True):
            nats[owner] += float(loss.sum(dtype=np.float64))
        documents = {
            "document": [record.name for record in split.records[:count]],
            "nats": nats.tolist(),
            "bytes": counts["byte"].tolist(),
            "tokens": counts["token"].tolist(),
            "words": counts["word"].tolist(),
            "bits_per_byte": (nats / (math.log(2) * counts["byte"])).tolist(),
        }
        total = float(nats.sum())
        metrics = {"val/bits_per_byte": total / (math.log(2) * int(counts["byte"].sum()))}
        for unit in UNITS:
            metrics[f"val/{unit}_perplexity"] = perplexity(total, int(counts[unit].sum()))
        return Evaluation(
            metrics=metrics,
            tables={"documents": documents},
            convention=f"disjoint windows of {window} tokens, each after the one token before it; "
            "a document's first token after the end-of-document token, which is not scored; "
            f"scored: {_scored(split, options, int(counts['byte'].sum()))}",
        )


def _scored(split: Split, options: PerplexityOptions, size: int) -> str:
    """Which part of the split was scored, in words and in bytes."""
    limit = options.tokens_per_document
    each = f"the first {limit:,} tokens of each document" if limit else "whole documents"
    whole = sum(record.bytes for record in split.records)
    return f"{each}, {size:,} of {whole:,} bytes"


@dataclass(frozen=True, kw_only=True, slots=True)
class LossByPositionOptions:
    """multiple: of the training length; documents: at most so many, those long enough."""

    multiple: PositiveInt = 8
    documents: PositiveInt = 32
    buckets: PositiveInt = 64


class LossByPosition(Task):
    """Mean loss at each position, to several times the training length, from each document's start.

    A block that forgets how to forget shows here first (arXiv 2410.07145).
    """

    Options = LossByPositionOptions
    metrics = tuple(f"position/bits_per_byte_to_{m}x" for m in MULTIPLES)

    def check(self, split: Split, sequence_length: int, options: LossByPositionOptions) -> None:
        longest = max(record.tokens for record in split.records)
        if longest < options.multiple * sequence_length:
            raise ValueError(
                f"no {split.name} document has {options.multiple * sequence_length} tokens "
                f"({options.multiple} x the training length; the longest has {longest}); "
                "use a smaller multiple or a shorter sequence_length"
            )

    def __call__(
        self, model: LanguageModel, context: EvaluationContext, options: LossByPositionOptions
    ) -> Evaluation:
        split, train_length = context.split, context.sequence_length
        length = options.multiple * train_length
        windows = [
            _document(split, index, length)
            for index, record in enumerate(split.records)
            if record.tokens >= length
        ][: options.documents]
        nats = np.stack(token_losses(model, windows, context)).sum(axis=0, dtype=np.float64)
        size = _token_bytes(split)[np.stack(windows)[:, 1:]].sum(axis=0)

        def bits(first: int, stop: int) -> float:
            return float(nats[first:stop].sum() / (math.log(2) * size[first:stop].sum()))

        edges = np.unique(np.linspace(0, length, options.buckets + 1).round().astype(int)).tolist()
        spans = list(itertools.pairwise(edges))
        rows: dict[str, list[Any]] = {
            "first": [a for a, _ in spans],
            "last": [b - 1 for _, b in spans],
            "bits_per_byte": [bits(a, b) for a, b in spans],
            "documents": [len(windows)] * len(spans),
        }
        metrics, start = {}, 0
        for multiple in (m for m in MULTIPLES if m <= options.multiple):
            stop = multiple * train_length
            metrics[f"position/bits_per_byte_to_{multiple}x"] = bits(start, stop)
            start = stop
        return Evaluation(
            metrics=metrics,
            tables={"loss_by_position": rows},
            convention=f"{len(windows)} documents from their beginning, in one pass of {length} "
            "tokens after the end-of-document token",
        )


def subset_bits_per_byte(model: LanguageModel, context: EvaluationContext, tokens: int) -> float:
    """Bits per byte on about `tokens` tokens, spread over validation documents: for curves.

    Over all of them if there are few, over the first ones of a corpus that has thousands.
    """
    each = max(tokens // context.split.documents, context.sequence_length)
    documents = max(tokens // each, FEWEST_DOCUMENTS)
    options = PerplexityOptions(tokens_per_document=each, documents=documents)
    return Perplexity()(model, context, options).metrics["val/bits_per_byte"]
