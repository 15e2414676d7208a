"""What a corpus is: named documents, each in one split, with a licence and a revision."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

SplitName = Literal["train", "val", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "val", "test")


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One text. `stratum` is the group (an era, a domain) that splits were balanced over."""

    name: str
    text: bytes  # UTF-8
    split: SplitName
    stratum: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """A corpus of the registry.

    `revision` names the exact text: equal revisions give equal documents in equal splits, and
    `documents` raises UsageError when what is installed is not that text. The order of the
    documents is part of it.
    """

    name: str
    summary: str
    licence: str
    citation: str
    revision: str
    documents: Callable[[], Iterator[Document]]
