"""What a run has seen, as two hashes: the tokens in their order, and the text apart from order."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import numpy as np

from arch_search.data.order import mix64
from arch_search.data.shards import Split
from arch_search.data.spellings import spellings_of
from arch_search.data.stream import TrainingStream

_MASK = (1 << 64) - 1
_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: spreads neighbouring places
_STRIDE = 1024  # tokens between two entries of the index of byte positions


class StreamHash:
    """Two rolling hashes over the batches of a stream, to be updated once a step.

    `tokens` is a sha256 chain over steps, shapes and values: equal only for equal batches in equal
    order. `text` is a sum, modulo 2^64, of a hash of every byte that was a target together with
    its document and its place in it, and the number of those bytes: equal for any batch, sequence
    length, order or tokenizer that covers the same text as often.
    """

    def __init__(self, stream: TrainingStream) -> None:
        self.stream = stream
        self.step = 0  # the next one expected
        self._chain = sha256(b"arch_search stream 1").hexdigest()
        self._text, self._bytes = 0, 0
        self._places = _BytePlaces(stream.split)

    @property
    def tokens(self) -> str:
        """64 hex digits."""
        return self._chain

    @property
    def text(self) -> str:
        """32 hex digits: the sum, then the number of bytes."""
        return f"{self._text:016x}{self._bytes:016x}"

    def update(self, step: int, batch: np.ndarray) -> None:
        """Take a step's batch in: (batch, sequence_length + 1), as `stream.batch(step)` gives it.

        Raises:
            ValueError: a step out of turn, which would count text twice or not at all.
        """
        if step != self.step:
            raise ValueError(f"the stream hash expects step {self.step} next, not step {step}")
        head = f"{self._chain} {step} {batch.shape}".encode()
        self._chain = sha256(head + batch.astype("<u4").tobytes()).hexdigest()
        # The first token of a row is the target of another one.
        keys, places, values = self._places.of(self.stream.starts(step) + 1, batch[:, 1:])
        numbered = (places << np.uint64(8)) | values
        self._text = (self._text + int(mix64(numbered * _ODD + keys).sum())) & _MASK
        self._bytes += len(values)
        self.step += 1

    def state(self) -> dict[str, Any]:
        """What `from_state` needs to go on, as JSON-able values."""
        return {"step": self.step, "tokens": self._chain, "text": self.text}

    @classmethod
    def from_state(cls, stream: TrainingStream, state: Mapping[str, Any]) -> "StreamHash":
        """A hash that goes on where `state` was taken."""
        resumed = cls(stream)
        resumed.step, resumed._chain = state["step"], state["tokens"]
        resumed._text, resumed._bytes = int(state["text"][:16], 16), int(state["text"][16:], 16)
        return resumed


class _BytePlaces:
    """Where in its document each byte of a token stands."""

    def __init__(self, split: Split) -> None:
        self.split = split
        spellings = spellings_of(split.manifest)
        self.lengths = np.array([len(spelling) for spelling in spellings])
        self.first = np.cumsum(self.lengths) - self.lengths
        self.letters = np.frombuffer(b"".join(spellings), np.uint8)
        known = ((int(r.sha256[:16], 16), r.bytes) for r in split.records)
        documents = np.fromiter(known, np.dtype((np.uint64, 2)), count=len(split.records))
        self.document_keys = documents[:, 0].copy()
        self.document_bytes = np.concatenate([[0], documents[:, 1].astype(np.int64).cumsum()])
        self.index = self._index()

    def _index(self) -> np.ndarray:
        """How many bytes stand before each `_STRIDE`-th token, and before the end."""
        sums = [np.zeros(1, np.int64)]
        for start in range(0, len(self.split.tokens), _STRIDE * _STRIDE):
            lengths = self.lengths[self.split.tokens[start : start + _STRIDE * _STRIDE]]
            sums.append(np.add.reduceat(lengths, np.arange(0, len(lengths), _STRIDE)))
        return np.concatenate(sums).cumsum()

    def _bytes_before(self, position: int) -> int:
        whole = position // _STRIDE
        return self.index[whole] + self.lengths[self.split.tokens[whole * _STRIDE : position]].sum()

    def of(self, starts: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, ...]:
        """Key of the document, place in it, and value, uint64 each, of every byte of `tokens`.

        Args:
            starts: (B,), the positions of the rows in the split.   tokens: (B, T).
        """
        ring = len(self.split.tokens)
        positions = (starts[:, None] + np.arange(tokens.shape[1])) % ring
        documents = np.searchsorted(self.split.offsets, positions, side="right") - 1
        lengths = self.lengths[tokens]
        before = np.array([self._bytes_before(start % ring) for start in starts])
        begins = before[:, None] + np.cumsum(lengths, 1) - lengths
        begins = begins % self.document_bytes[-1] - self.document_bytes[documents]
        counts = lengths.ravel()
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        letters = self.letters[np.repeat(self.first[tokens].ravel(), counts) + within]
        keys = np.repeat(self.document_keys[documents].ravel(), counts)
        places = np.repeat(begins.ravel(), counts) + within
        return keys, places.astype(np.uint64), letters.astype(np.uint64)
