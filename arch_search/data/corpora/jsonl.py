"""JSON Lines: one document a line, its text under a key. Plain or gzipped, one file or many."""

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arch_search.data.corpora.base import UNSTATED, Corpus, name_from
from arch_search.data.corpora.files import file_set
from arch_search.data.corpora.options import TextOptions, read
from arch_search.data.corpora.text import Text, text_corpus
from arch_search.errors import UsageError
from blocks.options import did_you_mean, option


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonlOptions(TextOptions):
    """Options of `jsonl:`."""

    jsonl: str | dict = option("", "a path, a pattern, or {train: path, val: path, test: path}")
    text: str = option("text", "the key that holds a document's text")
    stratum: str = option("", "a key that holds its group, such as a domain")


def jsonl(mapping: Mapping[str, Any]) -> Corpus:
    """The lines of JSON Lines files, in the order of files and lines.

    Raises:
        UsageError: no such file; while reading, a line that holds no text, by its number.
    """
    options: JsonlOptions = read(JsonlOptions, mapping, "jsonl")
    files = file_set(options.jsonl, "JSON Lines")
    first = files.sources[0][0]

    def texts() -> Iterator[Text]:
        for path, split in files.sources:
            for number, line in _lines(path):
                value = _value(line, path, number)
                yield Text(
                    name=f"{path.name}:{number}",
                    text=_text(value, options.text, f"{path}, line {number}"),
                    split=split,
                    stratum=str(value.get(options.stratum, "")) if options.stratum else "",
                )

    return text_corpus(
        texts,
        options,
        name=name_from(first.name.partition(".")[0]),
        summary=f"{len(files.sources)} JSON Lines files, {first} the first",
        licence=UNSTATED,
        citation="",
        revision=f"jsonl/{options.text}/{options.stratum}/{files.revision}",
        size=files.size if first.suffix != ".gz" else None,
    )


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    unpack = gzip.open if path.suffix == ".gz" else open
    try:
        with unpack(path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, line
    except (EOFError, gzip.BadGzipFile) as error:
        raise UsageError(f"{path} is damaged: {error}") from None


def _value(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}, line {number} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path}, line {number} is {type(value).__name__}; expected an object")
    return value


def _text(value: dict[str, Any], key: str, where: str) -> bytes:
    if key not in value:
        raise UsageError(
            f"{where} has no key {key!r}; it has {', '.join(map(repr, value))}."
            f"{did_you_mean(key, value)} Give text: (the key)"
        )
    return encoded(value[key], f"{where}, key {key!r}")


def encoded(text: Any, where: str) -> bytes:
    """A text as UTF-8. Raises UsageError if it is no string, or no text (a lone surrogate)."""
    if not isinstance(text, str):
        raise UsageError(f"{where}: expected a string, got {type(text).__name__}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{where}: cannot be written as UTF-8 ({error.reason})") from None
