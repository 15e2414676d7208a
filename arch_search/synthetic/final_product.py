"""Word problems of finite groups that are asked for once: read elements and END, say their product.

Parity so posed is a task of the formal languages of arXiv 2207.02098 and of Zoology. Tokens: 0 is
padding, 1 … |G| the elements, then END. An item has a random number of elements, right-padded.
"""

from dataclasses import dataclass

import numpy as np

from arch_search.model import IGNORED
from arch_search.synthetic.base import Examples, Generator, Purpose
from arch_search.synthetic.draws import Draws
from arch_search.synthetic.groups import group
from arch_search.synthetic.state_tracking import prefix_products
from blocks.options import option, require_positive


class FinalProduct(Generator):
    """The product of all elements, after the last of them: nothing on the way helps to learn it."""

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Options:
        group: str = option("Z2", "S#, A#, Z# or products of them, as A4xZ5; Z2 is parity")
        shortest: int = option(3, "least number of elements; the length with its END is the most")

        def __post_init__(self) -> None:
            group(self.group)
            require_positive(self, "shortest")

    def vocabulary(self, options: Options) -> int:
        return group(options.group).order + 2

    def chance(self, options: Options, length: int) -> float:
        """1 / |G|: with one uniform element the product is uniform."""
        return 1 / group(options.group).order

    def check(self, options: Options, length: int) -> None:
        if length <= options.shortest:
            raise ValueError(
                f"sequence_length {length} has no room for {options.shortest} elements and END"
            )

    def draw(self, draws: Draws, length: int, options: Options, purpose: Purpose) -> Examples:
        found, rows = group(options.group), np.arange(len(draws))
        counts = options.shortest + draws.integers(length - options.shortest)
        elements = draws.integers(found.order, length)
        tokens = np.where(np.arange(length) < counts[:, None], 1 + elements, 0)
        tokens[rows, counts] = found.order + 1
        targets = np.full((len(draws), length), IGNORED, np.int64)
        targets[rows, counts] = 1 + prefix_products(found, elements)[rows, counts - 1]
        return Examples(tokens=tokens, targets=targets)
