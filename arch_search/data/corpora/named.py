"""A corpus of the registry with some of its documents left out or cut."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from arch_search.data.corpora.base import Corpus
from arch_search.data.corpora.options import TextOptions, read
from arch_search.data.corpora.text import Text, text_corpus
from blocks.options import option


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedOptions(TextOptions):
    """Options of `named:`."""

    named: str = option("", "the corpus, as in sotu")


def named(mapping: Mapping[str, Any]) -> Corpus:
    """The corpus in its own splits, filtered: `{named: sotu, max_bytes: 50000}`."""
    from arch_search.data.corpora import CORPORA, find_corpus, lookup  # which name this module

    options: NamedOptions = read(NamedOptions, mapping, "named")
    lookup(CORPORA, options.named, what="corpus")
    corpus = find_corpus(options.named)
    assert isinstance(corpus, Corpus)

    def texts() -> Iterator[Text]:
        for document in corpus.documents():
            yield Text(
                name=document.name,
                text=document.text,
                split=document.split,
                stratum=document.stratum,
            )

    return text_corpus(
        texts,
        options,
        name=f"{corpus.name}-filtered",
        summary=corpus.summary,
        licence=corpus.licence,
        citation=corpus.citation,
        revision=corpus.revision,
        size=corpus.size,
    )
