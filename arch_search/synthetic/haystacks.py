"""Sentences to hide something among."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from arch_search.data.corpora import Corpus, find_corpus
from arch_search.data.corpora.sotu import SOTU
from arch_search.errors import UsageError

GRASS = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."

MOST = 1 << 23  # bytes of a corpus that are cut into sentences


def sentences(texts: Iterable[str]) -> list[str]:
    """Texts cut behind full stops, exclamation and question marks; white space made one blank."""
    cut = (re.split(r"(?<=[.!?])\s+", re.sub(r"\s+", " ", text).strip()) for text in texts)
    return [sentence for text in cut for sentence in text if sentence]


def sentences_of(corpus: str | Mapping[str, Any]) -> Sequence[str]:
    """Of any corpus, as `data.corpus` names it; of a large one its first MOST bytes.

    Raises:
        UsageError: no such corpus, or one of tokens without text.
    """
    return _sentences_of(json.dumps(corpus, sort_keys=True))


@cache
def _sentences_of(written: str) -> Sequence[str]:
    found = find_corpus(json.loads(written))
    if not isinstance(found, Corpus):
        raise UsageError(f"haystack {written}: {found.name} holds tokens; give a corpus of text")
    texts, size = [], 0
    for document in found.documents():
        texts.append(document.text.decode())
        size += len(document.text)
        if size >= MOST:
            break
    if not (cut := sentences(texts)):
        raise UsageError(f"haystack {written} holds no sentence")
    return cut


@cache
def speeches() -> Sequence[str]:
    """The training split of the corpus that comes with the installation."""
    documents = SOTU.documents()
    return sentences(d.text.decode() for d in documents if d.split == "train")
