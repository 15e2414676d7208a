"""Parquet files: one document a row, its text in a column."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arch_search.data.corpora.base import UNSTATED, Corpus, name_from
from arch_search.data.corpora.files import file_set
from arch_search.data.corpora.jsonl import encoded
from arch_search.data.corpora.options import TextOptions, read
from arch_search.data.corpora.text import Text, text_corpus
from arch_search.errors import UsageError
from blocks.options import did_you_mean, option

ROWS = 256  # read at once


@dataclass(frozen=True, kw_only=True, slots=True)
class ParquetOptions(TextOptions):
    """Options of `parquet:`."""

    parquet: str | dict = option("", "a path, a pattern, or {train: path, val: path, test: path}")
    text: str = option("text", "the column that holds a document's text")
    stratum: str = option("", "a column that holds its group, such as a domain")


def parquet(mapping: Mapping[str, Any]) -> Corpus:
    """The rows of Parquet files, in the order of files and rows; a few in memory at a time.

    Raises:
        UsageError: no such file, a file that is not Parquet, or that lacks the column.
    """
    options: ParquetOptions = read(ParquetOptions, mapping, "parquet")
    files = file_set(options.parquet, "Parquet")
    columns = [options.text, *([options.stratum] if options.stratum else [])]
    for path, _ in files.sources:
        _check_columns(path, columns)

    def texts() -> Iterator[Text]:
        for path, split in files.sources:
            for number, row in enumerate(_rows(path, columns), 1):
                yield Text(
                    name=f"{path.name}:{number}",
                    text=encoded(row[0], f"{path}, row {number}, column {options.text!r}"),
                    split=split,
                    stratum=str(row[1]) if options.stratum else "",
                )

    first = files.sources[0][0]
    return text_corpus(
        texts,
        options,
        name=name_from(first.name.partition(".")[0]),
        summary=f"{len(files.sources)} Parquet files, {first} the first",
        licence=UNSTATED,
        citation="",
        revision=f"parquet/{options.text}/{options.stratum}/{files.revision}",
    )


def _check_columns(path: Path, columns: list[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        there = pq.read_schema(path).names
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{path} is no readable Parquet file: {_first_line(error)}") from None
    for column in columns:
        if column not in there:
            raise UsageError(
                f"{path} has no column {column!r}; it has {', '.join(there)}."
                f"{did_you_mean(column, there)}"
            )


def _rows(path: Path, columns: list[str]) -> Iterator[tuple[Any, ...]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=ROWS, columns=columns):
                yield from zip(*(batch.column(c).to_pylist() for c in columns), strict=True)
    except pa.ArrowException as error:
        raise UsageError(f"{path} is damaged: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
