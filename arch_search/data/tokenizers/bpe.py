"""Byte-level BPE trained on the training split of the corpus that it is used on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from arch_search.data.corpora.options import read
from arch_search.data.corpora.text import pieces
from arch_search.data.tokenizers.base import Recipe, Tokenizer
from arch_search.data.tokenizers.json_file import import_tokenizers, read_json
from arch_search.errors import UsageError
from blocks.options import option

END = "<|endoftext|>"
SMALLEST = 257  # every byte, and the end of a document
PIECE_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class BpeOptions:
    """Options of `bpe:`."""

    bpe: int = option(0, "tokens in the vocabulary, 256 bytes and the end of a document included")
    train_bytes: int = option(100_000_000, "it is trained on the first so many bytes of train")
    min_frequency: int = option(2, "pairs that are rarer are not merged")


def bpe(mapping: Mapping[str, Any]) -> Recipe:
    """How a BPE of so many tokens is trained.

    Raises:
        UsageError: a vocabulary smaller than the bytes, or no text to train on.
    """
    options: BpeOptions = read(BpeOptions, mapping, "bpe")
    if not SMALLEST <= options.bpe <= 1_000_000:
        raise UsageError(f"bpe is {options.bpe}; expected {SMALLEST} to 1000000 tokens")
    if options.train_bytes < 1 or options.min_frequency < 1:
        raise UsageError("bpe: train_bytes and min_frequency must be at least 1")
    name = f"bpe-{options.bpe}"

    def read_again(source: bytes, revision: str) -> Tokenizer:
        return read_json(source, name=name, where=f"{name} (trained here)", recipe=revision)

    def train(texts: Iterator[bytes], revision: str) -> Tokenizer:
        return read_again(_train(texts, options), revision)

    return Recipe(
        name=name,
        revision=f"bpe/{options.bpe}/{options.train_bytes}/{options.min_frequency}",
        train=train,
        read=read_again,
    )


def _train(texts: Iterator[bytes], options: BpeOptions) -> bytes:
    """The tokenizer.json of a BPE over GPT-2's pieces of words; nothing is normalised."""
    tokenizers = import_tokenizers()
    encoder = tokenizers.Tokenizer(tokenizers.models.BPE())
    encoder.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=options.bpe,
        min_frequency=options.min_frequency,
        special_tokens=[END],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    encoder.train_from_iterator(_first(texts, options.train_bytes), trainer)
    return encoder.to_str().encode()


def _first(texts: Iterator[bytes], limit: int) -> Iterator[str]:
    taken = 0
    for text in texts:
        for piece in pieces(text, PIECE_BYTES):
            if taken >= limit:
                return
            taken += len(piece)
            yield piece.decode()
    if not taken:
        raise UsageError("bpe: the training split has no text to train on")
