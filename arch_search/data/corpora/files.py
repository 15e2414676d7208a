"""The files behind a corpus: found in one order, read as UTF-8, known by their bytes."""

import glob
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import get_args

from arch_search.data.corpora.base import SplitName
from arch_search.data.fingerprints import fingerprint
from arch_search.errors import UsageError
from blocks.options import did_you_mean

Source = tuple[Path, SplitName | None]
"""A file, and its split if that is settled for all that it holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileSet:
    """Files in the order in which they are read, and a hash of their names and bytes."""

    sources: tuple[Source, ...]
    revision: str
    size: int  # bytes on disk


def find_files(where: str, what: str) -> list[Path]:
    """The files that a path or a pattern (`*`, `**`) names, sorted.

    Raises:
        UsageError: there is none; says where it looked.
    """
    pattern = os.path.abspath(os.path.expanduser(where))
    if os.path.exists(pattern):  # a name may hold a bracket
        found = [pattern]
    else:
        found = sorted(glob.glob(pattern, recursive=True))
    files = [Path(name) for name in found if os.path.isfile(name)]
    if not files:
        raise UsageError(f"no {what} file at {pattern}{_beside(Path(pattern))}")
    return files


def _beside(path: Path) -> str:
    if not path.parent.is_dir():
        return "; its folder does not exist"
    return did_you_mean(path.name, [entry.name for entry in path.parent.iterdir()])


def file_set(places: str | Mapping[str, str], what: str) -> FileSet:
    """Files of `{split: path}`, or of one path whose contents are split later.

    Raises:
        UsageError: no file, or a split that is none of train, val and test.
    """
    if isinstance(places, str):
        sources: list[Source] = [(path, None) for path in find_files(places, what)]
    else:
        check_split_names(places)
        sources = [
            (path, split) for split in get_args(SplitName) if split in places
            for path in find_files(places[split], what)
        ]  # fmt: skip
    return settle(sources, [path.name for path, _ in sources])


def check_split_names(places: Mapping[str, str]) -> None:
    """Raise UsageError unless `places` has a train and a val split, and none of another name."""
    known = get_args(SplitName)
    for split, place in places.items():
        if split not in known:
            raise UsageError(
                f"unknown split {split!r}; a corpus has {', '.join(known)}."
                f"{did_you_mean(str(split), known)}"
            )
        if not isinstance(place, str):
            raise UsageError(f"split {split!r} is {place!r}; expected a path or a name")
    if not {"train", "val"} <= places.keys():
        raise UsageError(f"a corpus in splits needs train and val, not only {sorted(places)}")


def settle(sources: Sequence[Source], names: Sequence[str]) -> FileSet:
    """Fingerprint files; `names` stand for them in the revision, so that a copy is the same."""
    digest, size = sha256(), 0
    for (path, split), name in zip(sources, names, strict=True):
        record = fingerprint(path)
        digest.update(f"{name}\0{split}\0{record.sha256}\0".encode())
        size += record.size
    return FileSet(sources=tuple(sources), revision=digest.hexdigest()[:16], size=size)


def checked_text(text: bytes, where: str) -> bytes:
    """The text. Raises UsageError, with the line, if it is not UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        line = text[: error.start].count(b"\n") + 1
        raise UsageError(
            f"{where}, line {line}: byte {text[error.start]:#04x} is not UTF-8; convert the file "
            "first, as with iconv -t UTF-8"
        ) from None
    return text
