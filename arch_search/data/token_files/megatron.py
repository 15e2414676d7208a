"""Megatron-LM's indexed datasets: tokens in .bin, where each sequence lies in .idx.

The index, little-endian: 'MMIDIDX\\0\\0', uint64 version 1, uint8 token type, uint64 number S of
sequences, uint64 number of document borders; then S int32 lengths in tokens, S int64 places in
bytes, and the borders as int64 numbers of sequences, 0 first and S last.
"""

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from arch_search.data.corpora.base import SplitName, name_from
from arch_search.data.corpora.files import check_split_names
from arch_search.data.token_files.base import (
    Piece,
    TokenCorpus,
    TokenOptions,
    TokenSplit,
    TokenType,
    cut_at_the_end,
    read_token_options,
    token_corpus,
)
from arch_search.errors import UsageError
from blocks.options import option

MAGIC = b"MMIDIDX\x00\x00"
HEAD = struct.Struct("<9sQBQQ")
TYPES: dict[int, TokenType] = {1: "uint8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}


@dataclass(frozen=True, kw_only=True, slots=True)
class MegatronOptions(TokenOptions):
    """Options of `megatron:`."""

    megatron: str | dict = option("", "path without .bin and .idx, or {train: path, val: path}")


def megatron(mapping: Mapping[str, Any]) -> TokenCorpus:
    """Indexed datasets; one that is not split is split at a document, its end held out.

    Raises:
        UsageError: no such files, or an index that is damaged or does not fit its tokens.
    """
    options: MegatronOptions = read_token_options(MegatronOptions, mapping, "megatron")
    places = options.megatron
    if isinstance(places, str):
        whole = _read(places)
        assert whole.offsets is not None
        splits = cut_at_the_end(whole.pieces, whole.offsets)
        first = places
    else:
        check_split_names(places)
        splits = {s: _read(places[s]) for s in get_args(SplitName) if s in places}
        first = places["train"]
    return token_corpus(options, splits, kind="megatron", name=name_from(Path(first).name))


def _read(prefix: str) -> TokenSplit:
    stem = os.path.abspath(os.path.expanduser(prefix)).removesuffix(".bin").removesuffix(".idx")
    index, tokens = Path(stem + ".idx"), Path(stem + ".bin")
    for path in (index, tokens):
        if not path.is_file():
            raise UsageError(f"no file {path}; a Megatron dataset is a .bin and an .idx")
    data = index.read_bytes()
    type, lengths, places, borders = _index(data, index)
    width = np.dtype(type).itemsize
    ends = np.cumsum(lengths, dtype=np.int64)
    if len(lengths) and not np.array_equal(places, (ends - lengths) * width):
        raise UsageError(f"{index}: its sequences do not follow one another in {tokens.name}")
    count = int(ends[-1]) if len(ends) else 0
    if tokens.stat().st_size != count * width:
        raise UsageError(
            f"{tokens} has {tokens.stat().st_size} bytes; its index says {count} {type} tokens"
        )
    return TokenSplit(
        pieces=(Piece(path=str(tokens), type=type, start=0, count=count),),
        offsets=np.concatenate([[0], ends])[np.unique(borders)],
    )


def _index(data: bytes, path: Path) -> tuple[TokenType, np.ndarray, np.ndarray, np.ndarray]:
    if len(data) < HEAD.size or data[: len(MAGIC)] != MAGIC:
        raise UsageError(f"{path} is no Megatron index (it does not begin with {MAGIC!r})")
    _, version, code, sequences, documents = HEAD.unpack_from(data)
    if version != 1 or code not in TYPES:
        raise UsageError(
            f"{path} is of version {version}, token type {code}; readable are version 1 and types "
            + ", ".join(f"{code} ({type})" for code, type in TYPES.items())
        )
    if len(data) < HEAD.size + 12 * sequences + 8 * documents:
        raise UsageError(f"{path} is cut off: too short for {sequences} sequences")
    lengths = np.frombuffer(data, "<i4", sequences, HEAD.size)
    places = np.frombuffer(data, "<i8", sequences, HEAD.size + 4 * sequences)
    borders = np.frombuffer(data, "<i8", documents, HEAD.size + 12 * sequences)
    wrong = (lengths < 0).any() or not len(borders) or (borders[0], borders[-1]) != (0, sequences)
    if wrong or (np.diff(borders) < 0).any():
        raise UsageError(f"{path} is damaged: lengths or document borders that cannot be")
    return TYPES[code], lengths, places, borders
