"""What a tokenizer is: text to tokens without loss, and the bytes that each token stands for."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from arch_search.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenizer:
    """A tokenizer: of the registry, or read from a file.

    `spellings[token]` are the UTF-8 bytes of a token, none for a special one; the spellings of
    `encode(text)`, joined, are `text`. Bits per byte and the hash of the text rest on that.
    `source` is the tokenizer.json that it was read from, to be kept with what it made; `recipe`
    says how it was trained, if it was trained here.
    """

    name: str
    summary: str
    end_of_document: int
    spellings: tuple[bytes, ...]
    encode: Callable[[bytes], np.ndarray]  # UTF-8 -> tokens, one-dimensional, unsigned
    source: bytes = b""
    recipe: str = ""

    @property
    def vocabulary(self) -> int:
        """How many tokens there are, special ones included."""
        return len(self.spellings)

    def decode(self, tokens: Iterable[int]) -> str:
        """What tokens spell; what is no UTF-8 becomes U+FFFD.

        So does a token beyond the vocabulary: models may have more, to fill their matrices up.
        """
        known = len(self.spellings)
        parts = [self.spellings[t] if t < known else "\ufffd".encode() for t in tokens]
        return b"".join(parts).decode(errors="replace")

    @property
    def revision(self) -> str:
        """Changes with any token's spelling, and with how texts are cut into tokens."""
        if self.recipe:
            return self.recipe
        digest = sha256(self.end_of_document.to_bytes(4, "little"))
        for spelling in self.spellings:
            digest.update(len(spelling).to_bytes(4, "little") + spelling)
        digest.update(self.source)
        return digest.hexdigest()[:16]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A tokenizer that is trained on a corpus before its first use.

    `train(texts, revision)` takes the texts of the training split; `read(source, revision)` takes
    up again what it made.
    """

    name: str
    revision: str  # without the corpus'
    train: Callable[[Iterator[bytes], str], Tokenizer]
    read: Callable[[bytes, str], Tokenizer]


def require_lossless(text: bytes, tokens: list[int], spellings: tuple[bytes, ...]) -> None:
    """Raise UsageError, with the place, unless the tokens spell the text."""
    spelt = b"".join([spellings[token] for token in tokens])
    if spelt == text:
        return
    pairs = enumerate(zip(text, spelt, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), min(len(text), len(spelt)))
    around = slice(max(place - 10, 0), place + 10)
    raise UsageError(
        f"the tokenizer does not give the text back: at byte {place} {text[around]!r} became "
        f"{spelt[around]!r}; bits per byte need one that loses nothing, as byte-level BPE"
    )
