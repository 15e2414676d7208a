"""Flat token files: nanoGPT's .bin, and llm.c's and modded-nanogpt's with a header.

nanoGPT writes uint16 and nothing else. llm.c begins with 256 int32: a magic number, a version and
the number of tokens; 20240520 is uint16 (GPT-2), 20240801 is uint32 (Llama 3).
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from arch_search.data.corpora.base import SplitName, name_from
from arch_search.data.corpora.files import check_split_names, find_files
from arch_search.data.token_files.base import (
    Piece,
    TokenCorpus,
    TokenOptions,
    TokenSplit,
    TokenType,
    read_token_options,
    token_corpus,
)
from arch_search.errors import UsageError
from blocks.options import option

HEADER_BYTES = 1024
HEADERS: dict[int, TokenType] = {20240520: "uint16", 20240801: "uint32"}


@dataclass(frozen=True, kw_only=True, slots=True)
class NanogptOptions(TokenOptions):
    """Options of `nanogpt:`."""

    nanogpt: str | dict = option("", "a folder with train.bin and val.bin, or {train: …, val: …}")
    type: Literal["uint16", "uint32"] = option("uint16", "of a token, in files without a header")


def nanogpt(mapping: Mapping[str, Any]) -> TokenCorpus:
    """Flat .bin files; documents end where the tokenizer's end of document stands.

    Raises:
        UsageError: no such file, or one whose size does not fit its type or header.
    """
    options: NanogptOptions = read_token_options(NanogptOptions, mapping, "nanogpt")
    places = options.nanogpt
    if isinstance(places, str):
        folder = Path(places).expanduser()
        if not folder.is_dir():
            raise UsageError(f"no folder {folder.resolve()} with train.bin and val.bin")
        places = {"train": str(folder / "train.bin"), "val": str(folder / "val.bin")}
        if (folder / "test.bin").is_file():
            places["test"] = str(folder / "test.bin")
    check_split_names(places)
    splits: dict[SplitName, TokenSplit] = {
        split: TokenSplit(
            pieces=tuple(_piece(path, options.type) for path in find_files(places[split], "token"))
        )
        for split in get_args(SplitName)
        if split in places
    }
    first = Path(splits["train"].pieces[0].path)
    name = name_from(first.parent.name)
    return token_corpus(options, splits, kind="nanogpt", name=name)


def _piece(path: Path, type: TokenType) -> Piece:
    size, start, count = path.stat().st_size, 0, None
    with path.open("rb") as file:
        head = np.frombuffer(file.read(12), "<i4") if size >= HEADER_BYTES else np.empty(0, int)
    if len(head) and int(head[0]) in HEADERS:
        type, start, count = HEADERS[int(head[0])], HEADER_BYTES, int(head[2])
    width = np.dtype(type).itemsize
    there, odd = divmod(size - start, width)
    if odd:
        raise UsageError(f"{path} has {size} bytes, which are no whole number of {type} tokens")
    if count is not None and count != there:
        raise UsageError(f"{path} holds {there} tokens; its header says {count}")
    return Piece(path=os.path.abspath(path), type=type, start=start, count=there)
