"""Tokens in files of somebody else's making, as ranges that can be mapped into memory."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from arch_search.data.corpora.base import UNSTATED, SplitName, checked_name
from arch_search.data.corpora.options import read
from arch_search.data.fingerprints import fingerprint
from arch_search.data.records import FileRecord
from arch_search.errors import UsageError
from blocks.options import option

TokenType = Literal["uint8", "uint16", "int16", "int32", "uint32", "int64"]
VAL_SHARE, TEST_SHARE = 0.05, 0.05  # of the tokens, at the end of files that come unsplit


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """`count` tokens of a file, little-endian, from a byte on."""

    path: str  # absolute
    type: TokenType
    start: int  # bytes
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenSplit:
    """The tokens of one split, in pieces.

    `offsets`, (documents + 1,), says where each document begins; None if only the tokens
    themselves can tell, by the tokenizer's end of document.
    """

    pieces: tuple[Piece, ...]
    offsets: np.ndarray | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenCorpus:
    """Tokens that somebody has made, with the tokenizer that the experiment names."""

    name: str
    summary: str
    licence: str
    revision: str
    splits: Mapping[SplitName, TokenSplit]
    files: Mapping[str, FileRecord]  # by absolute path


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenOptions:
    """What every kind of token files takes."""

    name: str = option("", "name in tables and folders; taken from the path if not given")
    licence: str = option("", "licence of the text, kept with the prepared data")


def read_token_options(cls: type, mapping: Mapping[str, Any], kind: str) -> Any:
    """Options of a kind of token files.

    Raises:
        UsageError: as of `read`; and for options that would change the text, which is made.
    """
    for key in ("min_bytes", "max_bytes", "cut_every"):
        if key in mapping:
            raise UsageError(f"{kind} reads tokens where they lie, so {key} cannot apply to it")
    return read(cls, mapping, kind)


def token_corpus(
    options: TokenOptions, splits: Mapping[SplitName, TokenSplit], *, kind: str, name: str
) -> TokenCorpus:
    """A corpus over these splits; fingerprints their files.

    Raises:
        UsageError: a split of training or validation without a token.
    """
    for split in ("train", "val"):
        if not sum(piece.count for piece in splits[split].pieces):
            raise UsageError(f"{kind}: the {split} split holds no token")
    paths = list(dict.fromkeys(p.path for split in splits.values() for p in split.pieces))
    files = {path: fingerprint(Path(path)) for path in paths}
    return TokenCorpus(
        name=checked_name(options.name or name),
        summary=f"{len(paths)} token files ({kind}), {paths[0]} the first",
        licence=options.licence or UNSTATED,
        revision=f"{kind}/" + ",".join(record.sha256[:16] for record in files.values()),
        splits=splits,
        files=files,
    )


def cut_at_the_end(pieces: Sequence[Piece], offsets: np.ndarray) -> dict[SplitName, TokenSplit]:
    """Files that come unsplit: the first documents, about 90% of the tokens, are for training.

    Held out is what comes last, so files in an order of their own (by date, by source) are better
    split by whoever made them.

    Raises:
        UsageError: too few documents for three splits.
    """
    total = int(offsets[-1])
    ends = [total * (1 - VAL_SHARE - TEST_SHARE), total * (1 - TEST_SHARE)]
    first, second = (int(np.searchsorted(offsets, end)) for end in ends)
    last = len(offsets) - 1
    if not 0 < first < second < last:
        raise UsageError(
            f"{last} documents are too few to hold 5% of the tokens out twice; give the splits as "
            "files of their own: {train: path, val: path}"
        )
    bounds = {"train": (0, first), "val": (first, second), "test": (second, last)}
    return {
        split: TokenSplit(
            pieces=tuple(_between(pieces, int(offsets[a]), int(offsets[b]))),
            offsets=offsets[a : b + 1] - offsets[a],
        )
        for split, (a, b) in bounds.items()
    }  # type: ignore[return-value]


def _between(pieces: Sequence[Piece], first: int, end: int) -> Iterator[Piece]:
    before = 0
    for piece in pieces:
        a, b = max(first - before, 0), min(end - before, piece.count)
        if a < b:
            yield Piece(
                path=piece.path,
                type=piece.type,
                start=piece.start + a * np.dtype(piece.type).itemsize,
                count=b - a,
            )
        before += piece.count
