"""Modular arithmetic: read an expression and '=', say its value (arXiv 2207.02098).

Tokens: 0 is padding, 1 … m the numbers 0 … m - 1, then + - × = and, with brackets, ( and ). An item
is an expression of random length, right-padded; the answer is asked after '='.
"""

from dataclasses import dataclass

import numpy as np

from arch_search.model import IGNORED
from arch_search.synthetic.base import Examples, Generator, Purpose
from arch_search.synthetic.draws import Draws
from blocks.options import option, require_positive

PLUS, MINUS, TIMES = 0, 1, 2


class ModularArithmetic(Generator):
    """Values of expressions over the integers modulo m; × binds before + and -."""

    balanced = False

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Options:
        modulus: int = option(5, "m")
        brackets: bool = option(False, "nested brackets, whose pairs each hold one operation")
        shortest: int = option(3, "least length of an expression with its '=', in tokens")

        def __post_init__(self) -> None:
            require_positive(self, "modulus", "shortest")

    def vocabulary(self, options: Options) -> int:
        return 1 + options.modulus + 4 + 2 * options.brackets

    def chance(self, options: Options, length: int) -> float:
        """1 / m: the values are near uniform, zero a little more frequent through ×."""
        return 1 / options.modulus

    def check(self, options: Options, length: int) -> None:
        if length < max(options.shortest, 2):
            raise ValueError(
                f"sequence_length {length} is below the shortest expression, {options.shortest}"
            )

    def draw(self, draws: Draws, length: int, options: Options, purpose: Purpose) -> Examples:
        step = 4 if options.brackets else 2  # tokens that one more operation adds
        least = max(-(-(options.shortest - 2) // step), 0)
        most = (length - 2) // step
        counts = least + draws.integers(max(most - least, 0) + 1)
        numbers = draws.integers(options.modulus, most + 1)
        signs = draws.integers(3, most)
        splits = draws.uniform(most)
        tokens = np.zeros((len(draws), length), np.int64)
        targets = np.full((len(draws), length), IGNORED, np.int64)
        for row, count in enumerate(counts.tolist()):
            given = (numbers[row, : count + 1], signs[row, :count], splits[row])
            if options.brackets:
                text, value = _nested(*given, options.modulus)
            else:
                text, value = _flat(*given[:2], options.modulus)
            tokens[row, : len(text)] = text
            targets[row, len(text) - 1] = 1 + value
        return Examples(tokens=tokens, targets=targets)


def _flat(numbers: np.ndarray, signs: np.ndarray, modulus: int) -> tuple[list[int], int]:
    """'n s n s n =' and its value."""
    sign = 1 + modulus
    text = [1 + int(numbers[0])]
    total, term = 0, int(numbers[0])
    for operation, number in zip(signs.tolist(), numbers[1:].tolist(), strict=True):
        text += [sign + operation, 1 + number]
        if operation == TIMES:
            term = term * number % modulus
        else:
            total, term = total + term, number if operation == PLUS else -number
    return [*text, sign + 3], (total + term) % modulus


def _nested(
    numbers: np.ndarray, signs: np.ndarray, splits: np.ndarray, modulus: int
) -> tuple[list[int], int]:
    """'( … s … )' around every operation, the tree drawn by `splits`, then '='; and its value."""
    sign = 1 + modulus

    def build(first: int, last: int) -> tuple[list[int], int]:
        if first == last:
            return [1 + int(numbers[first])], int(numbers[first])
        at = first + int(splits[(first + last) // 2] * (last - first))
        left, a = build(first, at)
        right, b = build(at + 1, last)
        operation = int(signs[at])
        value = {PLUS: a + b, MINUS: a - b, TIMES: a * b}[operation] % modulus
        return [sign + 4, *left, sign + operation, *right, sign + 5], value

    text, value = build(0, len(numbers) - 1)
    return [*text, sign + 3], value
