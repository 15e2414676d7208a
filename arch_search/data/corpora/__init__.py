"""The corpora: one file and one line each."""

from arch_search.data.corpora.base import Corpus, Document
from arch_search.data.registry import lookup

CORPORA = {
    "sotu": "arch_search.data.corpora.sotu:SOTU",
}


def find_corpus(name: str) -> Corpus:
    """The corpus of that name. Raises UsageError with the nearest name if there is none."""
    return lookup(CORPORA, name, what="corpus")


__all__ = ["CORPORA", "Corpus", "Document", "find_corpus"]
