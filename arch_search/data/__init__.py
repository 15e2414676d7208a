"""Corpora, tokenizers, shards and the order in which a run sees them. Free of torch."""

from arch_search.data.corpora import CORPORA, find_corpus
from arch_search.data.loader import loader
from arch_search.data.manifest import Manifest, check_files, load_manifest
from arch_search.data.prepare import prepare
from arch_search.data.shards import Split, open_split
from arch_search.data.spellings import spellings_of
from arch_search.data.stream import TrainingStream, first_difference
from arch_search.data.stream_hash import StreamHash
from arch_search.data.tokenizers import TOKENIZERS, find_tokenizer

__all__ = [
    "CORPORA",
    "TOKENIZERS",
    "Manifest",
    "Split",
    "StreamHash",
    "TrainingStream",
    "check_files",
    "find_corpus",
    "find_tokenizer",
    "first_difference",
    "load_manifest",
    "loader",
    "open_split",
    "prepare",
    "spellings_of",
]
