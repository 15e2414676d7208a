"""Hugging Face datasets of tokens, as `save_to_disk` writes them: Arrow files, mapped in place.

The values of a list column lie in an Arrow file one after the other, uncompressed, one range a
record batch; a range of bytes is all that training then needs, without Arrow.
"""

import json
import os
from collections.abc import Iterator, Mapping
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
from blocks.options import did_you_mean, option

THEIR_SPLITS: dict[SplitName, tuple[str, ...]] = {
    "train": ("train",), "val": ("val", "validation", "valid"), "test": ("test",)
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenisedOptions(TokenOptions):
    """Options of `tokenised:`."""

    tokenised: str | dict = option("", "what save_to_disk wrote, or {train: path, val: path}")
    column: str = option("input_ids", "the column of lists of tokens; a row is a document")


def tokenised(mapping: Mapping[str, Any]) -> TokenCorpus:
    """Rows of tokens; a dataset that is not split is split at a row, its end held out.

    Raises:
        UsageError: no such dataset, or a column that is missing or holds no whole numbers.
    """
    options: TokenisedOptions = read_token_options(TokenisedOptions, mapping, "tokenised")
    places = options.tokenised
    if isinstance(places, str):
        folder = Path(places).expanduser().resolve()
        places = _splits_of(folder)
    else:
        check_split_names(places)
        folder = Path(places["train"]).expanduser().resolve().parent
    if places:
        splits = {
            split: _read(Path(places[split]).expanduser().resolve(), options.column)
            for split in get_args(SplitName)
            if split in places
        }
    else:
        whole = _read(folder, options.column)
        assert whole.offsets is not None
        splits = cut_at_the_end(whole.pieces, whole.offsets)
    return token_corpus(options, splits, kind="tokenised", name=name_from(folder.name))


def _splits_of(folder: Path) -> dict[str, str]:
    """The folders of a DatasetDict by our names of splits; none if it is one dataset."""
    if not (folder / "dataset_dict.json").is_file():
        return {}
    found = {
        split: str(folder / theirs)
        for split, names in THEIR_SPLITS.items()
        for theirs in names
        if (folder / theirs).is_dir()
    }
    return found if {"train", "val"} <= found.keys() else {}


def _read(folder: Path, column: str) -> TokenSplit:
    pieces, lengths = [], []
    for path in _data_files(folder):
        for piece, rows in _ranges(path, column):
            pieces.append(piece)
            lengths.append(rows)
    sizes = np.concatenate(lengths) if lengths else np.empty(0, np.int64)
    sizes = sizes[sizes > 0]
    return TokenSplit(
        pieces=tuple(pieces), offsets=np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    )


def _data_files(folder: Path) -> list[Path]:
    state = folder / "state.json"
    if not state.is_file():
        raise UsageError(f"{folder} is no dataset that save_to_disk wrote: it has no state.json")
    try:
        content = json.loads(state.read_bytes())
        names = [entry["filename"] for entry in content["_data_files"]]
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{state} does not say which files hold the data") from None
    paths = [folder / name for name in names]
    for path in paths:
        if not path.resolve().is_relative_to(folder):
            raise UsageError(f"{state} names {path}, which lies outside {folder}")
        if not path.is_file():
            raise UsageError(f"{state} names {path.name}, which is not there")
    return paths


def _ranges(path: Path, column: str) -> Iterator[tuple[Piece, np.ndarray]]:
    """Each record batch's values as a range of the file, and the length of each row."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as source:
            base = source.read_buffer().address
            source.seek(0)
            for number, batch in enumerate(pa.ipc.open_stream(source)):
                if column not in batch.schema.names:
                    names = batch.schema.names
                    raise UsageError(
                        f"{path} has no column {column!r}; it has {', '.join(names)}."
                        f"{did_you_mean(column, names)}"
                    )
                yield _range(batch.column(column), base, path, f"record batch {number}")
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"{path} is no readable Arrow file: {reason}") from None


def _range(rows: Any, base: int, path: Path, where: str) -> tuple[Piece, np.ndarray]:
    import pyarrow as pa

    kind = rows.type
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    name = str(kind.value_type) if lists else str(kind)
    if not lists or name not in get_args(TokenType):
        raise UsageError(
            f"{path}: a column of {kind}; expected lists of {', '.join(get_args(TokenType))}"
        )
    if rows.null_count or rows.values.null_count:
        raise UsageError(f"{path}, {where}: rows or tokens are missing (null)")
    type = next(known for known in get_args(TokenType) if known == name)
    borders = rows.offsets.to_numpy()
    values = rows.values
    width = np.dtype(type).itemsize
    count = int(borders[-1] - borders[0]) if len(borders) else 0
    address = values.buffers()[1].address if count else base
    start = address - base + (values.offset + int(borders[0] if count else 0)) * width
    piece = Piece(path=os.path.abspath(path), type=type, start=start, count=count)
    return piece, np.diff(borders).astype(np.int64)
