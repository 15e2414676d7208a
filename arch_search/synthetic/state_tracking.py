"""Word problems of finite groups: name the product of all elements read so far, at every position.

As Merrill et al. (arXiv 2404.08819) pose them and DeltaProduct (arXiv 2502.10297) trains on them,
with no special tokens: one token an element, x_1 … x_T uniform; y_t = x_1 · … · x_t. Parity is Z2.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from arch_search.model import IGNORED
from arch_search.synthetic.base import Examples, Generator, Purpose
from arch_search.synthetic.draws import Draws
from arch_search.synthetic.groups import Group, group
from blocks.options import option, require_not_negative, require_positive

MOST_TOKENS = 65_536


class StateTracking(Generator):
    """Prefix products in a group."""

    prefixed = True

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Options:
        group: str = option("S3", "S#, A#, Z# or products of them, as A4xZ5; Z2 is parity")
        moved: int = option(
            0, "draw only permutations that move at most so many points: 2 for swaps; 0: all"
        )
        repeat: int = option(1, "tokens an element; it is asked for after the last of them")
        filler: Literal["same", "special"] = option(
            "same", "what the further tokens are: the element again, or a token of their own"
        )
        packed: int = option(
            1,
            "elements in one token, followed by so many less one identities; answers come as many "
            "tokens late (the variants called hard)",
        )

        def __post_init__(self) -> None:
            found = group(self.group)
            require_positive(self, "repeat", "packed")
            require_not_negative(self, "moved")
            if self.moved == 1 or (self.moved and not found.moved.any()):
                raise ValueError(
                    f"moved is {self.moved} in {self.group}; expected 2 or more, in S# or A#"
                )
            if self.moved and not ((found.moved > 0) & (found.moved <= self.moved)).any():
                raise ValueError(f"no element of {self.group} moves at most {self.moved} points")
            if self.packed > 1 and self.repeat > 1:
                raise ValueError("repeat and packed are two variants; set one of them")
            if found.order**self.packed > MOST_TOKENS:
                raise ValueError(
                    f"packed {self.packed} in {self.group} needs {found.order**self.packed:,} "
                    f"tokens; at most {MOST_TOKENS:,} are possible"
                )

    def vocabulary(self, options: Options) -> int:
        special = options.repeat > 1 and options.filler == "special"
        return group(options.group).order ** options.packed + special

    def chance(self, options: Options, length: int) -> float:
        """1 / |G|; with restricted inputs this holds from some positions on."""
        return 1 / group(options.group).order

    def check(self, options: Options, length: int) -> None:
        least = max(options.repeat, options.packed)
        if length < least:
            raise ValueError(f"sequence_length {length} is below one element's {least} tokens")

    def draw(self, draws: Draws, length: int, options: Options, purpose: Purpose) -> Examples:
        found = group(options.group)
        count = -(-length // options.repeat)
        allowed = np.flatnonzero(found.moved <= options.moved) if options.moved else None
        drawn = draws.integers(found.order if allowed is None else len(allowed), count)
        elements = drawn if allowed is None else allowed[drawn]
        products = prefix_products(found, elements)
        if options.packed > 1:
            return _packed(elements, products, found.order, options.packed)
        if options.repeat == 1:
            return Examples(tokens=elements, targets=products)
        tokens = np.repeat(elements, options.repeat, axis=1)
        last = np.arange(tokens.shape[1]) % options.repeat == options.repeat - 1
        targets = np.where(last, np.repeat(products, options.repeat, axis=1), IGNORED)
        if options.filler == "special":
            first = np.arange(tokens.shape[1]) % options.repeat == 0
            tokens = np.where(first, tokens, found.order)
        return Examples(tokens=tokens[:, :length], targets=targets[:, :length])


def prefix_products(found: Group, elements: np.ndarray) -> np.ndarray:
    """x_1 · … · x_t for every t, (B, T) int64."""
    products = np.empty_like(elements)
    so_far = np.zeros(len(elements), np.int64)
    for t in range(elements.shape[1]):
        so_far = found.table[so_far, elements[:, t]]
        products[:, t] = so_far
    return products


def _packed(elements: np.ndarray, products: np.ndarray, order: int, packed: int) -> Examples:
    """Elements b·p … b·p + p - 1 in the token at b·p, as digits to the base |G|, the first lowest.

    The identities between are token 0. The target at t is the product up to t - p + 1.
    """
    B, T = elements.shape
    whole = T // packed * packed
    digits = elements[:, :whole].reshape(B, -1, packed) * order ** np.arange(packed)
    tokens = np.zeros((B, T), np.int64)
    tokens[:, :whole:packed] = digits.sum(axis=2)
    targets = np.full((B, T), IGNORED, np.int64)
    targets[:, packed - 1 : whole] = products[:, : whole - packed + 1]
    return Examples(tokens=tokens, targets=targets)
