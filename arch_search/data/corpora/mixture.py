"""Several corpora as one, mixed by weight."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from arch_search.data.corpora.base import SPLITS, Corpus, Document, SplitName, checked_name
from arch_search.data.corpora.options import read
from arch_search.errors import UsageError
from arch_search.spec import content_hash
from blocks.options import option


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureOptions:
    """Options of `mixture:`."""

    mixture: dict | list = option(
        None, "{name: weight, …}, or a list of {corpus: …, weight: …} for corpora with options"
    )
    name: str = option("mixture", "name in tables and folders")


def mixture(mapping: Mapping[str, Any]) -> Corpus:
    """Documents of several corpora, so that each has its share of the bytes at every point.

    In each split the corpus that is furthest behind its weight gives the next document. The mixture
    ends where the first corpus is used up: no document comes twice. Each split of each corpus is
    read by itself, so a source is read three times.

    Raises:
        UsageError: fewer than two corpora, two of one name, or a weight that is not above zero.
    """
    options: MixtureOptions = read(MixtureOptions, mapping, "mixture")
    parts = [(_corpus(spec), _weight(spec, weight)) for spec, weight in _parts(options.mixture)]
    names = [corpus.name for corpus, _ in parts]
    if len(parts) < 2 or len(set(names)) < len(names):
        raise UsageError(
            f"mixture: expected two or more corpora of different names, got {', '.join(names)}"
        )
    total = sum(weight for _, weight in parts)
    shares = {corpus.name: weight / total for corpus, weight in parts}
    identity = [[corpus.name, corpus.revision, shares[corpus.name]] for corpus, _ in parts]
    licences = dict.fromkeys(f"{corpus.name}: {corpus.licence}" for corpus, _ in parts)
    citations = dict.fromkeys(corpus.citation for corpus, _ in parts if corpus.citation)
    return Corpus(
        name=checked_name(options.name),
        summary=", ".join(f"{share:.1%} {name}" for name, share in shares.items()),
        licence="; ".join(licences),
        citation="; ".join(citations),
        revision=f"mixture/{content_hash(identity)}",
        documents=lambda: _documents([(corpus, shares[corpus.name]) for corpus, _ in parts]),
    )


def _parts(given: Any) -> list[tuple[Any, Any]]:
    if isinstance(given, Mapping):
        return list(given.items())
    if all(isinstance(part, Mapping) and part.keys() == {"corpus", "weight"} for part in given):
        return [(part["corpus"], part["weight"]) for part in given]
    raise UsageError("mixture: each entry of the list is {corpus: …, weight: …}")


def _corpus(spec: Any) -> Corpus:
    from arch_search.data.corpora import Corpus, find_corpus  # which names this module

    found = find_corpus(spec)
    if not isinstance(found, Corpus):
        raise UsageError(f"mixture: {found.name} is made of token files, which cannot be mixed")
    return found


def _weight(spec: Any, weight: Any) -> float:
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < 1e9:
        raise UsageError(f"mixture: the weight of {spec} is {weight!r}; expected a number above 0")
    return float(weight)


def _documents(parts: list[tuple[Corpus, float]]) -> Iterator[Document]:
    for split in SPLITS:
        taken = [0] * len(parts)
        sources = [_of_split(corpus, split) for corpus, _ in parts]
        while True:
            behind = min(range(len(parts)), key=lambda i: (taken[i] / parts[i][1], i))
            document = next(sources[behind], None)
            if document is None:
                break
            taken[behind] += len(document.text)
            corpus = parts[behind][0].name
            yield replace(document, name=f"{corpus}/{document.name}", stratum=corpus)


def _of_split(corpus: Corpus, split: SplitName) -> Iterator[Document]:
    return (document for document in corpus.documents() if document.split == split)
