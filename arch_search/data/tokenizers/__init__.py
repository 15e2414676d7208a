"""The tokenizers: one file and one line each."""

from collections.abc import Mapping
from typing import Any

from arch_search.data.corpora.options import read_kind
from arch_search.data.registry import lookup
from arch_search.data.tokenizers.base import Recipe, Tokenizer
from arch_search.errors import UsageError

TOKENIZERS = {
    "bytes": "arch_search.data.tokenizers.byte_level:BYTES",
    "cl100k": "arch_search.data.tokenizers.openai:cl100k",
}
"""Tokenizers that need no option: a `Tokenizer`, or a function that gives one."""

KINDS = {
    "bpe": "arch_search.data.tokenizers.bpe:bpe",
    "file": "arch_search.data.tokenizers.json_file:json_file",
}
"""Tokenizers with options: functions of the whole mapping, of which the kind is one key."""


def find_tokenizer(spec: str | Mapping[str, Any]) -> Tokenizer | Recipe:
    """The tokenizer of a name, or of a mapping such as `{bpe: 4096}`.

    Raises:
        UsageError: an unknown name, kind or option, with the nearest one; an unusable file.
    """
    if isinstance(spec, str):
        if spec in KINDS:
            raise UsageError(f"tokenizer {spec!r} has to be told more; write {{{spec}: …}}")
        found = lookup(TOKENIZERS, spec, what="tokenizer")
        return found if isinstance(found, Tokenizer) else found()
    kind, _ = read_kind(spec, KINDS)
    return lookup(KINDS, kind, what="kind of tokenizer")(spec)


__all__ = ["KINDS", "TOKENIZERS", "Recipe", "Tokenizer", "find_tokenizer"]
