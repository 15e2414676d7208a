"""Reading a split: memory-mapped tokens and where each document begins."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import overload

import numpy as np
from pydantic import TypeAdapter

from arch_search.data.manifest import DocumentRecord, Manifest, check_files
from arch_search.data.token_files.base import Piece
from arch_search.data.token_files.pieces import JoinedTokens, map_pieces
from arch_search.errors import UsageError

_DOCUMENT = TypeAdapter(DocumentRecord)
_SCAN = 1 << 22  # bytes looked through at once


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Split:
    """One split of prepared data; opening it reads no tokens.

    Attributes:
        tokens: (tokens,) unsigned, memory-mapped. In shards made here each document is followed by
            `end_of_document`; in token files of others, as they were made.
        offsets: (documents + 1,) int64; document i is `tokens[offsets[i] : offsets[i + 1]]`.
        records: name, stratum, bytes, tokens and sha256 of each document, in order.
    """

    name: str
    manifest: Manifest
    tokens: np.ndarray | JoinedTokens = field(repr=False)
    offsets: np.ndarray = field(repr=False)
    records: Sequence[DocumentRecord] = field(repr=False)

    @property
    def documents(self) -> int:
        """How many documents there are."""
        return len(self.records)

    def document(self, index: int) -> np.ndarray:
        """The tokens of one document, (tokens,) int64, its end-of-document token left out."""
        begin, stop = int(self.offsets[index]), int(self.offsets[index + 1])
        first, last = without_ends(self.tokens, begin, stop, self.manifest.end_of_document)
        return self.tokens[first:last].astype(np.int64)


def without_ends(
    tokens: np.ndarray | JoinedTokens, begin: int, stop: int, end: int
) -> tuple[int, int]:
    """The range of a document's own tokens, the end-of-document tokens around it left out."""
    while begin < stop and tokens[stop - 1] == end:
        stop -= 1
    while begin < stop and tokens[begin] == end:
        begin += 1
    return begin, stop


def open_split(manifest: Manifest, name: str, *, verify: bool = False) -> Split:
    """Open a split; with `verify`, every byte of the prepared data is compared with its hash.

    Raises:
        UsageError: no such split, or files that are not what was written.
    """
    if name not in manifest.splits:
        raise UsageError(
            f"unknown split {name!r}; {manifest.corpus} has {', '.join(manifest.splits)}"
        )
    check_files(manifest, contents=verify)
    return Split(
        name=name,
        manifest=manifest,
        tokens=_map_tokens(manifest, name),
        offsets=np.fromfile(manifest.folder / f"{name}.offsets", "<i8"),
        records=DocumentRecords(manifest.folder / f"{name}.documents.jsonl"),
    )


def _map_tokens(manifest: Manifest, name: str) -> np.ndarray | JoinedTokens:
    for split, records in manifest.ranges.items():
        if split == name:
            return map_pieces(
                [Piece(path=r.path, type=r.type, start=r.start, count=r.count) for r in records]
            )
    path = manifest.folder / f"{name}.tokens"
    type = np.dtype(manifest.token_type).newbyteorder("<")
    empty = path.stat().st_size == 0  # which cannot be mapped
    return np.empty(0, type) if empty else np.memmap(path, type, mode="r")


class DocumentRecords(Sequence[DocumentRecord]):
    """The records of a split, each read when it is asked for: there may be millions."""

    def __init__(self, path: Path) -> None:
        empty = path.stat().st_size == 0
        self._text = np.empty(0, np.uint8) if empty else np.memmap(path, np.uint8, mode="r")
        ends = [
            start + 1 + np.flatnonzero(self._text[start : start + _SCAN] == ord("\n"))
            for start in range(0, len(self._text), _SCAN)
        ]
        self._borders = np.concatenate([[0], *ends]).astype(np.int64)

    def __len__(self) -> int:
        return len(self._borders) - 1

    @overload
    def __getitem__(self, index: int) -> DocumentRecord: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[DocumentRecord, ...]: ...
    def __getitem__(self, index):
        """One record, or a tuple of several."""
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        index = range(len(self))[index]
        return _DOCUMENT.validate_json(
            self._text[self._borders[index] : self._borders[index + 1]].tobytes()
        )
