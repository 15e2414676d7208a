"""A model asked for text: token by token, with the state carried.

Sequences of unequal lengths are computed together without a change to their values. Where a state
goes on from a text, the text is padded on the left and the state is reset where it begins, which
every block does exactly; where only losses are wanted, on the right, which a causal model cannot
see. What is left between batch sizes is rounding: other shapes are summed in another order.
"""

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from arch_search.devices import autocast
from arch_search.model import LanguageModel
from blocks.base import State

TOKENS_PER_FORWARD = 16_384


@dataclass(frozen=True, kw_only=True, slots=True)
class Inference:
    """A model as it is asked: in evaluation mode, without gradients, in batches.

    batch: sequences at once; 0: as many as fit in `TOKENS_PER_FORWARD`.
    tick: called between batches.
    """

    model: LanguageModel
    device: torch.device
    precision: str = "float32"
    batch: int = 0
    tick: Callable[[], None] = lambda: None

    def groups(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """The sequences in batches, by length: long ones first, so that memory fails at once."""
        waiting = sorted(range(len(lengths)), key=lambda i: -lengths[i])
        while waiting:
            fitting = TOKENS_PER_FORWARD // max(lengths[waiting[0]], 1)
            size = self.batch or max(fitting, 1)
            yield waiting[:size]
            waiting = waiting[size:]

    def run(
        self, tokens: Tensor, states: list[State] | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, list[State]]:
        """Features (B, T, D) and the states after them, for tokens (B, T)."""
        self.tick()
        with autocast(self.device, self.precision):
            return self.model.features(tokens, states, reset=reset)

    def logits(self, features: Tensor) -> Tensor:
        """Logits in float32."""
        with autocast(self.device, self.precision):
            return self.model.logits(features).float()

    def begin(self, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, list[State]]:
        """The features of each prompt's last token, (B, D), and the states after it."""
        longest = max(map(len, prompts))
        tokens = torch.zeros(len(prompts), longest, dtype=torch.int64)
        reset = torch.zeros(tokens.shape, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            tokens[row, longest - len(prompt) :] = torch.tensor(prompt)
            reset[row, longest - len(prompt)] = True
        padded = any(len(prompt) < longest for prompt in prompts)
        features, states = self.run(
            tokens.to(self.device), None, reset.to(self.device) if padded else None
        )
        return features[:, -1], states


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How a token is chosen. temperature 0: the likeliest. top_p: from the likeliest that reach it.

    Each sequence draws from (seed, its index, the token's place) alone, whatever its batch.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf or not 0 < self.top_p <= 1:
            raise ValueError(
                f"temperature {self.temperature}, top_p {self.top_p}; expected a temperature of at "
                "least 0 (0: greedy) and top_p above 0, up to 1"
            )

    def choose(self, logits: Tensor, indices: Sequence[int], place: int) -> Tensor:
        """One token for each row of logits (B, U); `indices` are those of the sequences."""
        if self.temperature == 0:
            return logits.argmax(dim=-1)
        shares = torch.softmax(logits.double().cpu() / self.temperature, dim=-1)
        ordered, tokens = shares.sort(dim=-1, descending=True, stable=True)
        reached = ordered.cumsum(dim=-1)
        ordered = ordered.masked_fill(reached - ordered >= self.top_p, 0.0)
        reached = ordered.cumsum(dim=-1)
        drawn = torch.tensor([_uniform(self.seed, i, place) for i in indices], dtype=torch.float64)
        at = torch.searchsorted(reached, (drawn * reached[:, -1])[:, None], right=True)
        last = (ordered > 0).sum(dim=-1, keepdim=True) - 1  # rounding must not draw beyond it
        return tokens.gather(-1, at.minimum(last))[:, 0].to(logits.device)


def _uniform(seed: int, index: int, place: int) -> float:
    digest = hashlib.sha256(f"{seed}/{index}/{place}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / (1 << 53)


@torch.inference_mode()
def generate(
    inference: Inference,
    prompts: Sequence[Sequence[int]],
    *,
    tokens: int,
    sampling: Sampling | None = None,
    is_over: Callable[[list[int]], bool] = lambda grown: False,
) -> list[list[int]]:
    """Go on from each prompt, with one forward pass a token and the state carried.

    A recurrent block's token costs the same wherever it stands; attention keeps keys and values.

    Args:
        prompts: token ids, at least one each.   tokens: at most so many new ones.
        is_over: whether a sequence's new tokens are complete; its last one is kept.
    """
    with evaluating(inference.model):
        sampling = sampling or Sampling()
        results: list[list[int]] = [[] for _ in prompts]
        for group in inference.groups([len(prompt) for prompt in prompts]):
            grown = _grow(inference, {i: prompts[i] for i in group}, tokens, sampling, is_over)
            for i in group:
                results[i] = grown[i]
    return results


def _grow(
    inference: Inference,
    prompts: dict[int, Sequence[int]],
    tokens: int,
    sampling: Sampling,
    is_over: Callable[[list[int]], bool],
) -> dict[int, list[int]]:
    """What each prompt of one batch grows by; who is done leaves the batch."""
    grown: dict[int, list[int]] = {i: [] for i in prompts}
    running = list(prompts)
    if tokens < 1:
        return grown
    features, states = inference.begin(list(prompts.values()))
    for place in range(tokens):
        chosen = sampling.choose(inference.logits(features), running, place)
        for i, token in zip(running, chosen.tolist(), strict=True):
            grown[i].append(token)
        left = [row for row, i in enumerate(running) if not is_over(grown[i])]
        if not left or place + 1 == tokens:
            break
        if len(left) < len(running):
            running = [running[row] for row in left]
            rows = torch.tensor(left, device=inference.device)
            chosen, states = chosen[rows], select_rows(states, rows)
        features, states = inference.run(chosen[:, None], states)
        features = features[:, -1]
    return grown


@contextlib.contextmanager
def evaluating(model: LanguageModel) -> Iterator[None]:
    """A model in evaluation mode for a while."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def select_rows(states: Sequence[State], rows: Tensor) -> list[State]:
    """The states of some sequences, in the order of `rows`; one may be taken several times."""
    return [{name: value[rows] for name, value in state.items()} for state in states]
