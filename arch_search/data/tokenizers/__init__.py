"""The tokenizers: one file and one line each."""

from arch_search.data.registry import lookup
from arch_search.data.tokenizers.base import Tokenizer

TOKENIZERS = {
    "bytes": "arch_search.data.tokenizers.byte_level:BYTES",
}


def find_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of that name. Raises UsageError with the nearest name if there is none."""
    return lookup(TOKENIZERS, name, what="tokenizer")


__all__ = ["TOKENIZERS", "Tokenizer", "find_tokenizer"]
