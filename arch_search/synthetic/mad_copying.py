"""MAD's selective copying, compression and memorization (arXiv 2403.17844)."""

from dataclasses import dataclass

import numpy as np

from arch_search.model import IGNORED
from arch_search.synthetic.base import Examples, Generator, Purpose
from arch_search.synthetic.draws import Draws
from blocks.options import option, require_positive

MEMORIZED = "mad memorization 12345"  # the key of the one map that is to be learnt


class SelectiveCopying(Generator):
    """Tokens among blanks, then a copy token and as many blanks, at which to say them in order."""

    balanced = True

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Options:
        vocabulary: int = option(16, "U; the last two are the blank and the copy token")
        copied: int = option(16, "tokens to copy")

        def __post_init__(self) -> None:
            require_positive(self, "copied")
            if self.vocabulary < 3:
                raise ValueError(f"vocabulary is {self.vocabulary}; expected at least 3")

    def vocabulary(self, options: Options) -> int:
        return options.vocabulary

    def chance(self, options: Options, length: int) -> float:
        return 1 / (options.vocabulary - 2)

    def check(self, options: Options, length: int) -> None:
        if length < 2 * options.copied + 1:
            raise ValueError(
                f"sequence_length {length} is below {2 * options.copied + 1}, which "
                f"{options.copied} tokens, the copy token and their answers take"
            )

    def draw(self, draws: Draws, length: int, options: Options, purpose: Purpose) -> Examples:
        n, blank, rows = options.copied, options.vocabulary - 2, np.arange(len(draws))[:, None]
        copied = draws.integers(blank, n)
        places = np.sort(draws.choices(length - n - 1, n), axis=1)
        tokens = np.full((len(draws), length), blank, np.int64)
        tokens[rows, places] = copied
        tokens[:, length - n - 1] = blank + 1
        targets = np.full_like(tokens, IGNORED)
        targets[:, length - n :] = copied
        return Examples(tokens=tokens, targets=targets)


class Compression(Generator):
    """Random tokens, then a compression token, from whose features alone all are to be said."""

    balanced = True
    decoder = "autoencoder"

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Options:
        vocabulary: int = option(16, "U; the last is the compression token")

        def __post_init__(self) -> None:
            if self.vocabulary < 2:
                raise ValueError(f"vocabulary is {self.vocabulary}; expected at least 2")

    def vocabulary(self, options: Options) -> int:
        return options.vocabulary

    def chance(self, options: Options, length: int) -> float:
        return 1 / (options.vocabulary - 1)

    def draw(self, draws: Draws, length: int, options: Options, purpose: Purpose) -> Examples:
        tokens = draws.integers(options.vocabulary - 1, length)
        targets = tokens.copy()
        tokens[:, -1], targets[:, -1] = options.vocabulary - 1, IGNORED
        return Examples(tokens=tokens, targets=targets)


class Memorization(Generator):
    """key, INSERT, key, INSERT …: at each INSERT the value that one map for all gives the key.

    The map is the same for every seed, and is learnt by the weights alone.
    """

    balanced = True

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Options:
        vocabulary: int = option(256, "U; the last is INSERT, of the rest half are keys")

        def __post_init__(self) -> None:
            if self.vocabulary < 3:
                raise ValueError(f"vocabulary is {self.vocabulary}; expected at least 3")

    def vocabulary(self, options: Options) -> int:
        return options.vocabulary

    def chance(self, options: Options, length: int) -> float:
        keys = (options.vocabulary - 1) // 2
        return 1 / (options.vocabulary - 1 - keys)

    def check(self, options: Options, length: int) -> None:
        if length % 2:
            raise ValueError(f"sequence_length {length} must be even: keys and INSERT in turn")

    def draw(self, draws: Draws, length: int, options: Options, purpose: Purpose) -> Examples:
        keys = (options.vocabulary - 1) // 2
        values = options.vocabulary - 1 - keys
        table = keys + Draws(np.zeros(1), MEMORIZED).integers(values, keys)[0]
        tokens = np.full((len(draws), length), options.vocabulary - 1, np.int64)
        tokens[:, ::2] = draws.integers(keys, length // 2)
        targets = np.full_like(tokens, IGNORED)
        targets[:, 1::2] = table[tokens[:, ::2]]
        return Examples(tokens=tokens, targets=targets)
