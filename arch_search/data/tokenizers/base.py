"""What a tokenizer is: text to tokens without loss, and the bytes that each token stands for."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenizer:
    """A tokenizer of the registry.

    `spellings[token]` are the UTF-8 bytes of a token, none for a special one; the spellings of
    `encode(text)`, joined, are `text`. Bits per byte and the hash of the text rest on that.
    """

    name: str
    summary: str
    end_of_document: int
    spellings: tuple[bytes, ...]
    encode: Callable[[bytes], np.ndarray]  # UTF-8 -> tokens, one-dimensional, unsigned

    @property
    def vocabulary(self) -> int:
        """How many tokens there are, special ones included."""
        return len(self.spellings)

    @property
    def revision(self) -> str:
        """Changes with any token's spelling."""
        digest = sha256(self.end_of_document.to_bytes(4, "little"))
        for spelling in self.spellings:
            digest.update(len(spelling).to_bytes(4, "little") + spelling)
        return digest.hexdigest()[:16]
