"""Synthetic tasks that are written as text, for language models: a prompt and what to say after it.

Trained on they are bytes; a model of a corpus is asked in its own tokens and answers freely.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from arch_search.data.tokenizers import Tokenizer
from arch_search.data.tokenizers.byte_level import BYTES
from arch_search.model import IGNORED
from arch_search.synthetic.base import Examples, Generator, Purpose
from arch_search.synthetic.draws import Draws

Haystack = Callable[[], Sequence[str]]  # sentences, read when first asked for


@dataclass(frozen=True, kw_only=True, slots=True)
class TextItem:
    """One item.

    said: what answers the prompt in full.   answers: the strings in it that are looked for.
    about: where the item's facts stand, such as its depth, for tables.
    """

    prompt: str
    said: str
    answers: tuple[str, ...]
    about: Mapping[str, float | str] = field(default_factory=dict)


class TextTask(Generator):
    """A task of prompts. Its items have at most `length` tokens, the answer among them."""

    @abstractmethod
    def items(
        self, draws: Draws, length: int, options: Any, tokenizer: Tokenizer, haystack: Haystack
    ) -> list[TextItem]:
        """Items whose prompt and answer, after an end of document, fit into `length` tokens.

        Raises:
            ValueError: `length` has no room for what every item holds; says what it needs.
        """

    def vocabulary(self, options: Any) -> int:
        return BYTES.vocabulary

    def check(self, options: Any, length: int) -> None:
        draws = Draws(np.arange(1), type(self).__name__, "check")
        self.items(draws, length, options, BYTES, training_haystack)

    def draw(self, draws: Draws, length: int, options: Any, purpose: Purpose) -> Examples:
        found = self.items(draws, length, options, BYTES, training_haystack)
        tokens = np.full((len(found), length + 1), BYTES.end_of_document, np.int64)
        targets = np.full((len(found), length), IGNORED, np.int64)
        for row, item in enumerate(found):
            prompt, said = (token_ids(BYTES, text) for text in (item.prompt, item.said))
            whole = [*prompt, *said]
            tokens[row, 1 : 1 + len(whole)] = whole
            targets[row, len(prompt) : len(whole)] = said
        return Examples(tokens=tokens[:, :-1], targets=targets)


def token_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of a text."""
    return tokenizer.encode(text.encode()).tolist()


def training_haystack() -> Sequence[str]:
    """The sentences of the corpus that comes with the installation, its training split."""
    from arch_search.synthetic.haystacks import speeches

    return speeches()


def largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest n of 0 … most that fits, if smaller ones do as well; -1 if not even 0."""
    low, high = -1, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
