"""How likely a model holds given continuations of given contexts, each context read once.

A state computed from a context goes on exactly, for every block: several continuations of one
context (the choices of a question) share it. Batches and padding as in `generation`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from arch_search.generation import TOKENS_PER_FORWARD, Inference, evaluating, select_rows

Tokens = Sequence[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """The log-likelihood of a continuation in nats, and whether greedy decoding would give it."""

    nats: float
    is_greedy: bool


@torch.inference_mode()
def score_continuations(
    inference: Inference, pairs: Sequence[tuple[Tokens, Tokens]]
) -> list[Score]:
    """ln p(continuation | context) for each pair, in their order; no part may be empty.

    Summed over tokens in float64; each token's share is computed in float32.
    """
    by_context: dict[tuple[int, ...], list[int]] = {}
    for i, (context, continuation) in enumerate(pairs):
        if not context or not continuation:
            raise ValueError(f"pair {i} has an empty context or continuation")
        by_context.setdefault(tuple(context), []).append(i)
    shared = [group for group in by_context.values() if len(group) > 1]
    alone = [group[0] for group in by_context.values() if len(group) == 1]
    scores: dict[int, Score] = {}
    with evaluating(inference.model):
        for rows in inference.groups([len(pairs[i][0]) + len(pairs[i][1]) - 1 for i in alone]):
            _score_whole(inference, pairs, [alone[row] for row in rows], scores)
        for rows in inference.groups([len(pairs[group[0]][0]) for group in shared]):
            _score_shared(inference, pairs, [shared[row] for row in rows], scores)
    return [scores[i] for i in range(len(pairs))]


def _score_whole(
    inference: Inference,
    pairs: Sequence[tuple[Tokens, Tokens]],
    batch: list[int],
    scores: dict[int, Score],
) -> None:
    """Each context with its continuation in one piece."""
    whole = [[*pairs[i][0], *pairs[i][1]][:-1] for i in batch]
    features, _ = inference.run(_padded(whole, inference.device))
    parts = []
    for row, i in enumerate(batch):
        first = len(pairs[i][0]) - 1
        parts.append(features[row, first : first + len(pairs[i][1])])
    _read_off(inference, parts, [pairs[i][1] for i in batch], batch, scores)


def _score_shared(
    inference: Inference,
    pairs: Sequence[tuple[Tokens, Tokens]],
    groups: list[list[int]],
    scores: dict[int, Score],
) -> None:
    """The contexts once, then their continuations from the states after them."""
    contexts = [pairs[group[0]][0] for group in groups]
    last, states = inference.begin(contexts)
    asked = [(row, i) for row, group in enumerate(groups) for i in group]
    longest = max(len(context) for context in contexts)
    longest += max(len(pairs[i][1]) for _, i in asked)
    size = inference.batch or max(TOKENS_PER_FORWARD // longest, 1)
    for start in range(0, len(asked), size):
        piece = asked[start : start + size]
        rows = torch.tensor([row for row, _ in piece], device=inference.device)
        continuations = [pairs[i][1] for _, i in piece]
        features = last[rows][:, None]
        if max(map(len, continuations)) > 1:
            tokens = _padded([c[:-1] for c in continuations], inference.device)
            more, _ = inference.run(tokens, select_rows(states, rows))
            features = torch.cat([features, more], dim=1)
        parts = [features[row, : len(c)] for row, c in enumerate(continuations)]
        _read_off(inference, parts, continuations, [i for _, i in piece], scores)


def _padded(rows: Sequence[Tokens], device: torch.device) -> Tensor:
    """(B, T) int64, padded on the right."""
    tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    for row, given in enumerate(rows):
        tokens[row, : len(given)] = torch.tensor(given, dtype=torch.int64)
    return tokens.to(device)


def _read_off(
    inference: Inference,
    features: Sequence[Tensor],
    continuations: Sequence[Tokens],
    indices: Sequence[int],
    scores: dict[int, Score],
) -> None:
    """The score of each continuation (L,) from the features (L, D) that predict it."""
    targets = torch.tensor([t for c in continuations for t in c], device=inference.device)
    shares, greedy = [], []
    for part, target in zip(
        torch.cat(list(features)).split(TOKENS_PER_FORWARD // 4),
        targets.split(TOKENS_PER_FORWARD // 4),
        strict=True,
    ):
        logits = inference.logits(part)
        shares.append(torch.log_softmax(logits, dim=-1).gather(-1, target[:, None])[:, 0])
        greedy.append(logits.argmax(dim=-1) == target)
    lengths = [len(c) for c in continuations]
    nats = torch.cat(shares).double().cpu().split(lengths)
    right = torch.cat(greedy).cpu().split(lengths)
    for i, share, is_right in zip(indices, nats, right, strict=True):
        scores[i] = Score(nats=float(share.sum()), is_greedy=bool(is_right.all()))
