"""A random order of any length that needs no memory and answers from any place in it."""

from hashlib import blake2b

import numpy as np

ROUNDS = 8  # even, so that the halves of an odd number of bits end where they began
_WORD = 8  # bytes of a 64-bit word


def keyed_words(count: int, *key: str | int) -> list[int]:
    """`count` 64-bit numbers that depend on every part of the key; equal on every machine."""
    seed = "\0".join(map(str, key)).encode()
    digests = (blake2b(seed, salt=i.to_bytes(8, "little")).digest() for i in range(count // 8 + 1))
    stream = b"".join(digests)
    return [int.from_bytes(stream[i * _WORD : (i + 1) * _WORD], "little") for i in range(count)]


def mix64(value: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014), a bijection on uint64, elementwise."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


class Permutation:
    """A keyed bijection of 0 … size − 1 on itself, computed for the places asked for.

    A Feistel network permutes the next power of two; what falls outside the range is sent through
    again until it falls inside (cycle walking; Black and Rogaway 2002), fewer than two times each
    on average. Time for n places is O(n), memory O(n), whatever the size.
    """

    def __init__(self, size: int, *key: str | int) -> None:
        self.size = size
        bits = max(2, (size - 1).bit_length())
        self._low_bits = bits // 2
        self._high_bits = bits - self._low_bits
        self._keys = np.array(keyed_words(ROUNDS, "permutation", *key), np.uint64)

    def __call__(self, places: np.ndarray) -> np.ndarray:
        """What stands at `places`, (n,) integers in the range, as (n,) int64."""
        values = self._scramble(np.asarray(places).astype(np.uint64))
        while (outside := values >= self.size).any():
            values[outside] = self._scramble(values[outside])
        return values.astype(np.int64)

    def _scramble(self, values: np.ndarray) -> np.ndarray:
        left_bits, right_bits = self._high_bits, self._low_bits
        left = values >> np.uint64(right_bits)
        right = values & np.uint64((1 << right_bits) - 1)
        for key in self._keys:
            mask = np.uint64((1 << left_bits) - 1)
            left, right = right, left ^ (mix64(right + key) & mask)
            left_bits, right_bits = right_bits, left_bits
        return (left << np.uint64(right_bits)) | right
