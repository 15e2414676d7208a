"""What a run has seen, as two hashes: the tokens in their order, and the text apart from order."""

import numpy as np

from arch_search.data.order import mix64
from arch_search.data.rolling_hash import ODD, RollingHash
from arch_search.data.shards import Split
from arch_search.data.spellings import spellings_of
from arch_search.data.stream import TrainingStream

_STRIDE = 1024  # tokens between two entries of the index of byte positions


class StreamHash(RollingHash[TrainingStream]):
    """Two rolling hashes over the batches of a stream, to be updated once a step.

    `tokens` is a sha256 chain over steps, shapes and values: equal only for equal batches in equal
    order. `text` is a sum, modulo 2^64, of a hash of every byte that was a target together with
    its document and its place in it, and the number of those bytes: equal for any batch, sequence
    length, order or tokenizer that covers the same text as often.
    """

    start = b"arch_search stream 1"
    dtype = "<u4"

    def __init__(self, stream: TrainingStream) -> None:
        super().__init__(stream)
        self._places = _BytePlaces(stream.split)

    def summands(self, step: int, batch: np.ndarray) -> np.ndarray:
        """A hash of each byte of the targets; batch: (batch, sequence_length + 1)."""
        # The first token of a row is the target of another one.
        keys, places, values = self._places.of(self.stream.starts(step) + 1, batch[:, 1:])
        numbered = (places << np.uint64(8)) | values
        return mix64(numbered * ODD + keys)


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
