"""MAD's three recall tasks (arXiv 2403.17844): in-context, noisy and fuzzy.

Pairs of a key and a value, the value of a key fixed within an item; keys are the lower half of the
vocabulary, values the upper. Training asks for every next token, evaluation for the values of keys
that were seen before. Accuracy is macro-averaged over tokens, as MAD's is (`balanced_accuracy`).
"""

from dataclasses import dataclass

import numpy as np

from arch_search.model import IGNORED
from arch_search.synthetic.base import Examples, Generator, Purpose
from arch_search.synthetic.draws import Draws
from blocks.options import option, require_not_negative, require_positive


class InContextRecall(Generator):
    """Keys recur; the last pair always repeats one."""

    balanced = True

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Options:
        vocabulary: int = option(16, "U: keys and values, half each, and the noise tokens")
        noise_vocabulary: int = option(0, "how many of them are noise, the last ones")
        noise: float = option(0.0, "share of pairs that are two noise tokens instead")

        def __post_init__(self) -> None:
            require_positive(self, "vocabulary")
            require_not_negative(self, "noise_vocabulary", "noise")
            if (self.vocabulary - self.noise_vocabulary) % 2 or self.noise >= 1:
                raise ValueError("vocabulary without noise must be even, and noise below 1")
            if self.noise and not self.noise_vocabulary:
                raise ValueError("noise needs a noise_vocabulary")

    def vocabulary(self, options: Options) -> int:
        return options.vocabulary

    def chance(self, options: Options, length: int) -> float:
        """One of all values."""
        return 2 / (options.vocabulary - options.noise_vocabulary)

    def check(self, options: Options, length: int) -> None:
        if length % 2 or length < 4:
            raise ValueError(f"sequence_length {length} must be even and at least 4")

    def draw(self, draws: Draws, length: int, options: Options, purpose: Purpose) -> Examples:
        half, pairs = (options.vocabulary - options.noise_vocabulary) // 2, length // 2
        rows = np.arange(len(draws))
        table = half + draws.integers(half, half)  # each key's value
        keys = draws.integers(half, pairs)
        noisy = draws.uniform(pairs) < options.noise
        noisy[:, [0, -1]] = False  # the last pair repeats one, so there is one
        # The last key repeats an earlier one: the first in a random order that is no noise.
        order = np.where(noisy[:, :-1], 2.0, draws.uniform(pairs - 1))
        keys[:, -1] = keys[rows, order.argmin(axis=1)]
        tokens = np.stack([keys, table[rows[:, None], keys]], axis=2)
        if options.noise_vocabulary:
            noise = 2 * half + draws.integers(options.noise_vocabulary, pairs, 2)
            tokens = np.where(noisy[:, :, None], noise, tokens)
        tokens = tokens.reshape(len(draws), length)
        targets = np.full_like(tokens, IGNORED)
        if purpose == "train":
            targets[:, :-1] = tokens[:, 1:]
        else:
            repeats = _repeats(np.where(noisy, -1, keys), half) & ~noisy
            targets[:, ::2] = np.where(repeats, tokens[:, 1::2], IGNORED)
        return Examples(tokens=tokens, targets=targets)


def _repeats(keys: np.ndarray, count: int) -> np.ndarray:
    """Whether each key stood before in its row, (B, P) bool; -1 is none."""
    is_key = keys[:, :, None] == np.arange(count)
    before = np.cumsum(is_key, axis=1) - is_key
    return (before * is_key).any(axis=2)


class FuzzyRecall(Generator):
    """Keys and values of one to `motif` tokens; the last pair repeats a key of `motif` tokens."""

    balanced = True

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Options:
        vocabulary: int = option(16, "keys and values, half each; the padding token comes besides")
        motif: int = option(3, "most tokens of a key or a value, none twice in it")

        def __post_init__(self) -> None:
            require_positive(self, "vocabulary", "motif")
            if self.vocabulary % 2 or self.vocabulary // 2 < self.motif:
                raise ValueError(f"vocabulary must be even, its half at least motif {self.motif}")

    def vocabulary(self, options: Options) -> int:
        return options.vocabulary + 1

    def chance(self, options: Options, length: int) -> float:
        """One of all value tokens."""
        return 2 / options.vocabulary

    def check(self, options: Options, length: int) -> None:
        if length < 4 * options.motif:
            raise ValueError(f"sequence_length {length} is below two pairs, {4 * options.motif}")

    def draw(self, draws: Draws, length: int, options: Options, purpose: Purpose) -> Examples:
        half, most = options.vocabulary // 2, options.motif
        pairs = length // 2
        sizes = 1 + draws.integers(most, pairs, 2)
        sizes[:, 0, 0] = most
        orders = np.argsort(draws.words(pairs, 2, half), axis=3, kind="stable")[..., :most]
        probe = draws.uniform()
        pad = options.vocabulary
        tokens = np.full((len(draws), length), pad, np.int64)
        targets = np.full((len(draws), length), IGNORED, np.int64)
        for row in range(len(draws)):
            line, asked = _fuzzy_line(sizes[row], orders[row], half, most, length, probe[row])
            start = length - len(line)
            tokens[row, start:] = line
            if purpose == "train":
                targets[row, start:-1] = line[1:]
            else:
                places = start + np.array(asked)
                targets[row, places - 1] = tokens[row, places]
        return Examples(tokens=tokens, targets=targets)


def _fuzzy_line(
    sizes: np.ndarray, orders: np.ndarray, half: int, most: int, length: int, probe: float
) -> tuple[list[int], list[int]]:
    """An item's tokens without padding, and the places of values whose key stood before."""
    values: dict[tuple[int, ...], list[int]] = {}
    line: list[int] = []
    asked: list[int] = []

    def add(key: tuple[int, ...], fresh: list[int]) -> None:
        seen = key in values
        value = values.setdefault(key, fresh)
        line.extend(key)
        if seen:
            asked.extend(range(len(line), len(line) + len(value)))
        line.extend(value)

    for (key_size, value_size), (key_order, value_order) in zip(sizes, orders, strict=True):
        key = tuple(key_order[:key_size].tolist())
        value: list[int] = values.get(key) or (half + value_order[:value_size]).tolist()
        if len(line) + len(key) + len(value) + 2 * most > length:
            break
        add(key, value)
    long = [key for key in values if len(key) == most]
    add(long[int(probe * len(long))], [])
    return line, asked
