"""Random numbers that belong to an item: equal on every machine, in any batch, in any order."""

import math

import numpy as np

from arch_search.data.order import keyed_words, mix64

_ODD = np.uint64(0x9E3779B97F4A7C15)  # SplitMix64's increment, 2^64 over the golden ratio


class Draws:
    """Numbers of B items at once; each follows from the key, its index and what was drawn before.

    Item i has the SplitMix64 stream (Steele, Lea, Flood 2014) that begins at mix(i · odd + key).
    NumPy's own distributions may change between versions; these cannot.
    """

    def __init__(self, indices: np.ndarray, *key: str | int) -> None:
        [word] = keyed_words(1, "items", *key)[:1]
        self.indices = np.asarray(indices).astype(np.int64)
        numbered = self.indices.astype(np.uint64) * _ODD
        self._streams = mix64(numbered + np.uint64(word))
        self._taken = 0

    def __len__(self) -> int:
        return len(self._streams)

    def words(self, *shape: int) -> np.ndarray:
        """Uniform 64-bit words, (B, *shape) uint64."""
        count = math.prod(shape)
        counters = np.arange(self._taken + 1, self._taken + count + 1, dtype=np.uint64) * _ODD
        self._taken += count
        return mix64(self._streams[:, None] + counters).reshape(len(self), *shape)

    def integers(self, high: int, *shape: int) -> np.ndarray:
        """Uniform over 0 … high - 1, (B, *shape) int64; high far below 2^32."""
        return (((self.words(*shape) >> np.uint64(32)) * np.uint64(high)) >> np.uint64(32)).astype(
            np.int64
        )

    def uniform(self, *shape: int) -> np.ndarray:
        """Uniform on [0, 1), (B, *shape) float64."""
        return (self.words(*shape) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def orders(self, count: int) -> np.ndarray:
        """A random order of 0 … count - 1 for each item, (B, count) int64."""
        return np.argsort(self.words(count), axis=1, kind="stable")

    def choices(self, population: int, count: int) -> np.ndarray:
        """`count` of 0 … population - 1 without replacement, in random order, (B, count) int64."""
        return self.orders(population)[:, :count]
