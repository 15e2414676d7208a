"""Reading a split: memory-mapped tokens and where each document begins."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from arch_search.data.manifest import DocumentRecord, Manifest, check_files
from arch_search.errors import UsageError

_DOCUMENT = TypeAdapter(DocumentRecord)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Split:
    """One split of prepared data; opening it reads no tokens.

    Attributes:
        tokens: (tokens,) uint16, memory-mapped; each document is followed by `end_of_document`.
        offsets: (documents + 1,) int64; document i is `tokens[offsets[i] : offsets[i + 1]]`.
        records: name, stratum, bytes, tokens and sha256 of each document, in order.
    """

    name: str
    manifest: Manifest
    tokens: np.ndarray = field(repr=False)
    offsets: np.ndarray = field(repr=False)
    records: tuple[DocumentRecord, ...] = field(repr=False)

    @property
    def documents(self) -> int:
        """How many documents there are."""
        return len(self.records)

    def document(self, index: int) -> np.ndarray:
        """The tokens of one document, (tokens,) int64, its end-of-document token left out."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1] - 1].astype(np.int64)


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
    path = manifest.folder / f"{name}.tokens"
    empty = path.stat().st_size == 0  # which cannot be mapped
    return Split(
        name=name,
        manifest=manifest,
        tokens=np.empty(0, "<u2") if empty else np.memmap(path, "<u2", mode="r"),
        offsets=np.fromfile(manifest.folder / f"{name}.offsets", "<i8"),
        records=_read_records(manifest.folder / f"{name}.documents.jsonl"),
    )


def _read_records(path: Path) -> tuple[DocumentRecord, ...]:
    with path.open("rb") as lines:
        return tuple(_DOCUMENT.validate_json(line) for line in lines)
