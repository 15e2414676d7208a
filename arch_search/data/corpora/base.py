"""What a corpus is: named documents, each in one split, with a licence and a revision."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from arch_search.errors import UsageError

SplitName = Literal["train", "val", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "val", "test")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One text. `stratum` is the group (an era, a domain) that splits were balanced over."""

    name: str
    text: bytes  # UTF-8
    split: SplitName
    stratum: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """A corpus: of the registry, or of what a person's files hold.

    `revision` names the exact text: equal revisions give equal documents in equal splits, and
    `documents` raises UsageError when what is installed is not that text. The order of the
    documents is part of it. `size` is about how many bytes there are, if that is known.
    """

    name: str
    summary: str
    licence: str
    citation: str
    revision: str
    documents: Callable[[], Iterator[Document]]
    size: int | None = None


UNSTATED = "not stated; give licence: in the corpus"
"""The licence of files about which nothing was said."""


def checked_name(name: str) -> str:
    """The name, which becomes part of a folder's.

    Raises:
        UsageError: it could be read as a path, or is too long.
    """
    if not NAME.fullmatch(name):
        raise UsageError(
            f"corpus name {name!r} must be letters, digits, '.', '_' and '-', begin with a letter "
            "or digit and have at most 64 characters; give name: in the corpus"
        )
    return name


def name_from(path_stem: str) -> str:
    """A name made of a file's or folder's, with '-' for what a name cannot hold."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path_stem).strip("-._")[:64] or "files"
