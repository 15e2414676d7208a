"""The corpora: one file and one line each."""

from collections.abc import Mapping
from typing import Any

from arch_search.data.corpora.base import Corpus, Document
from arch_search.data.corpora.options import read_kind
from arch_search.data.registry import lookup
from arch_search.data.token_files.base import TokenCorpus
from arch_search.errors import UsageError

CORPORA = {
    "sotu": "arch_search.data.corpora.sotu:SOTU",
    "stdlib": "arch_search.data.corpora.stdlib:stdlib",
}
"""Corpora that need no option: a `Corpus`, or a function that gives one."""

KINDS = {
    "named": "arch_search.data.corpora.named:named",
    "folder": "arch_search.data.corpora.folder:folder",
    "jsonl": "arch_search.data.corpora.jsonl:jsonl",
    "parquet": "arch_search.data.corpora.parquet:parquet",
    "huggingface": "arch_search.data.corpora.huggingface:huggingface",
    "wikitext": "arch_search.data.corpora.huggingface:preset",
    "fineweb-edu": "arch_search.data.corpora.huggingface:preset",
    "pg19": "arch_search.data.corpora.huggingface:preset",
    "nemotron-cc": "arch_search.data.corpora.huggingface:preset",
    "mixture": "arch_search.data.corpora.mixture:mixture",
    "passkeys": "arch_search.data.corpora.passkeys:passkeys",
    "nanogpt": "arch_search.data.token_files.nanogpt:nanogpt",
    "megatron": "arch_search.data.token_files.megatron:megatron",
    "tokenised": "arch_search.data.token_files.arrow:tokenised",
}
"""Corpora with options: functions of the whole mapping, of which the kind is one key."""


def find_corpus(spec: str | Mapping[str, Any]) -> Corpus | TokenCorpus:
    """The corpus of a name, or of a mapping such as `{folder: texts, pattern: "*.md"}`.

    Raises:
        UsageError: an unknown name, kind or option, with the nearest one; files that are not there
            or not what they should be.
    """
    if isinstance(spec, str):
        if spec in KINDS:
            raise UsageError(f"corpus {spec!r} has to be told more; write {{{spec}: …}}")
        found = lookup(CORPORA, spec, what="corpus")
        return found if isinstance(found, Corpus) else found()
    kind, _ = read_kind(spec, KINDS)
    if spec[kind] is None or spec[kind] == "":
        raise UsageError(f"corpus {kind} is empty; write {{{kind}: …}}")
    return lookup(KINDS, kind, what="kind of corpus")(spec)


__all__ = ["CORPORA", "KINDS", "Corpus", "Document", "TokenCorpus", "find_corpus"]
