"""Sentences to hide something among."""

import re
from collections.abc import Iterable, Sequence
from functools import cache

from arch_search.data.corpora.sotu import SOTU

GRASS = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


def sentences(texts: Iterable[str]) -> list[str]:
    """Texts cut behind full stops, exclamation and question marks; white space made one blank."""
    cut = (re.split(r"(?<=[.!?])\s+", re.sub(r"\s+", " ", text).strip()) for text in texts)
    return [sentence for text in cut for sentence in text if sentence]


@cache
def speeches() -> Sequence[str]:
    """The training split of the corpus that comes with the installation."""
    documents = SOTU.documents()
    return sentences(d.text.decode() for d in documents if d.split == "train")
