"""Multi-query associative recall, as Zoology defines it (arXiv 2312.04927), and with forgetting.

Context k₁ v₁ k₂ v₂ …, then slots of two tokens, in which each key stands once as a query; after it
the model is to say its value, which the query part does not show. Keys are 1 … U/2 - 1, values
U/2 … U - 1.
"""

from dataclasses import dataclass

import numpy as np

from arch_search.model import IGNORED
from arch_search.synthetic.base import Examples, Generator, Purpose
from arch_search.synthetic.draws import Draws
from blocks.options import option, require_not_negative, require_positive


class MQAR(Generator):
    """Recall of D key-value pairs, each asked for once."""

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Options:
        vocabulary: int = option(8192, "U, above the length")
        pairs: int = option(8, "D, keys with a value each")
        power: float = option(
            0.01,
            "a: key i's slot j is drawn with P ∝ j^(a - 1); 0.01: most right after the context",
        )
        passes: int = option(1, "how often the context stands in a row")
        noise: bool = option(True, "fill the other query tokens with random tokens, else with 0")
        rewritten: int = option(
            0, "keys that are written again with another value, the one asked for (forgetting)"
        )

        def __post_init__(self) -> None:
            require_positive(self, "vocabulary", "pairs", "power", "passes")
            require_not_negative(self, "rewritten")
            if self.vocabulary % 2 or self.vocabulary // 2 - 1 < self.pairs:
                raise ValueError(
                    f"vocabulary {self.vocabulary} must be even and hold {self.pairs} keys below "
                    "its half, 0 left out"
                )
            if self.rewritten > self.pairs:
                raise ValueError(f"rewritten {self.rewritten} is above pairs {self.pairs}")
            if self.vocabulary // 2 < self.pairs + self.rewritten:
                raise ValueError(
                    f"vocabulary {self.vocabulary} has too few values for {self.pairs} pairs and "
                    f"{self.rewritten} rewritten"
                )

    def vocabulary(self, options: Options) -> int:
        return options.vocabulary

    def chance(self, options: Options, length: int) -> float:
        """1 / D: a value of the context, whichever."""
        return 1 / options.pairs

    def check(self, options: Options, length: int) -> None:
        least = self._context(options) + 2 * options.pairs
        if length % 2 or length < least:
            raise ValueError(
                f"sequence_length {length} must be even and at least {least} for {options.pairs} "
                f"pairs, {options.passes} passes and {options.rewritten} rewritten"
            )
        if options.vocabulary <= length:
            raise ValueError(f"vocabulary {options.vocabulary} must be above the length {length}")

    def _context(self, options: Options) -> int:
        return 2 * (options.pairs + options.rewritten) * options.passes

    def draw(self, draws: Draws, length: int, options: Options, purpose: Purpose) -> Examples:
        D, half, rows = options.pairs, options.vocabulary // 2, np.arange(len(draws))[:, None]
        keys = 1 + distinct(draws, half - 1, D)
        values = half + distinct(draws, half, D + options.rewritten)
        again = draws.choices(D, options.rewritten) if options.rewritten else keys[:, :0]
        written = np.concatenate([keys, keys[rows, again]], axis=1)
        context = np.stack([written, values], axis=2).reshape(len(draws), -1)
        answers = values[:, :D].copy()
        answers[rows, again] = values[:, D:]
        start = self._context(options)
        places = start + 2 * self._slots(draws, (length - start) // 2, options)
        filler = draws.integers(options.vocabulary, length)
        tokens = filler if options.noise else np.zeros_like(filler)
        tokens[:, :start] = np.tile(context, options.passes)
        tokens[rows, places] = keys
        targets = np.full_like(tokens, IGNORED)
        targets[rows, places] = answers
        return Examples(tokens=tokens, targets=targets)

    def _slots(self, draws: Draws, slots: int, options: Options) -> np.ndarray:
        """A slot for each key, drawn one after the other without replacement, (B, D).

        Exponential clocks of rate P ring in that order (Efraimidis and Spirakis 2006).
        """
        rate = np.arange(1, slots + 1) ** (options.power - 1)
        rings = -np.log1p(-draws.uniform(slots)) / rate
        return np.argsort(rings, axis=1, kind="stable")[:, : options.pairs]


def distinct(draws: Draws, population: int, count: int) -> np.ndarray:
    """`count` of 0 … population - 1 without replacement, (B, count).

    Of a large population the first distinct ones of more draws than are needed: as random, and
    without an order of the whole.
    """
    if population < 8 * count:
        return draws.choices(population, count)
    drawn = draws.integers(population, 4 * count + 16)
    order = np.argsort(drawn, axis=1, kind="stable")
    sorted_draws = np.take_along_axis(drawn, order, axis=1)
    repeated = np.zeros_like(drawn, dtype=bool)
    repeated[:, 1:] = sorted_draws[:, 1:] == sorted_draws[:, :-1]
    is_repeat = np.zeros_like(repeated)
    np.put_along_axis(is_repeat, order, repeated, axis=1)
    first = np.argsort(is_repeat, axis=1, kind="stable")[:, :count]
    assert not np.take_along_axis(is_repeat, first, axis=1).any(), "4 n + 16 draws hold n values"
    return np.take_along_axis(drawn, first, axis=1)
