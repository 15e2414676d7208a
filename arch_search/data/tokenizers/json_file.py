"""Any tokenizer.json, by the package tokenizers: JSON and nothing that executes.

What the tokens spell is read off the file, and every text is checked to come back as it was. Text
that looks like a special token is text: a document cannot end itself. Unicode normalisers are left
out, as they would change the text.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from arch_search.data.corpora.base import checked_name, name_from
from arch_search.data.corpora.options import read
from arch_search.data.corpora.text import pieces
from arch_search.data.tokenizers.base import Tokenizer, require_lossless
from arch_search.errors import UsageError
from arch_search.extras import how_to_install
from blocks.options import did_you_mean, option

PIECE_BYTES = 1 << 20  # a longer document is cut at a line's end, so that memory stays bounded
ENDS = ("<|endoftext|>", "<|end_of_text|>", "<|end▁of▁sentence|>", "</s>", "<eos>", "[SEP]")
UNICODE = ("NFC", "NFD", "NFKC", "NFKD")
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonFileOptions:
    """Options of `file:`."""

    file: str = option("", "a tokenizer.json")
    end_of_document: str = option("", "its token that ends a document, if it is not a usual one")
    name: str = option("", "name in tables and folders; taken from the path if not given")


def json_file(mapping: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a file.

    Raises:
        UsageError: no such file, or no tokenizer.json; the package is not installed.
    """
    options: JsonFileOptions = read(JsonFileOptions, mapping, "file")
    path = Path(options.file).expanduser().resolve()
    if not path.is_file():
        raise UsageError(f"no tokenizer file {path}; expected a tokenizer.json")
    stem = path.parent.name if path.stem == "tokenizer" else path.stem
    return read_json(
        path.read_bytes(),
        name=checked_name(options.name or name_from(stem)),
        where=str(path),
        end_of_document=options.end_of_document,
    )


def read_json(
    source: bytes, *, name: str, where: str, end_of_document: str = "", recipe: str = ""
) -> Tokenizer:
    """A tokenizer from the text of a tokenizer.json; see `json_file`."""
    content = _parse(source, where)
    encoder = _encoder(source, where)
    spellings = _spellings(encoder, content)
    end = _end_of_document(encoder, end_of_document, where)
    if end is None:  # a token that no text can be
        end = len(spellings)
        spellings.append(b"")
    spelt = tuple(spellings)

    def encode(text: bytes) -> np.ndarray:
        tokens: list[int] = []
        for piece in pieces(text, PIECE_BYTES):
            # Of a batch of one, the library gives other threads a turn.
            (encoded,) = encoder.encode_batch_fast([piece.decode()], add_special_tokens=False)
            tokens += encoded.ids
        require_lossless(text, tokens, spelt)
        return np.array(tokens, np.uint32)

    return Tokenizer(
        name=name,
        summary=where,
        end_of_document=end,
        spellings=spelt,
        encode=encode,
        source=source,
        recipe=recipe,
    )


def _parse(source: bytes, where: str) -> dict[str, Any]:
    try:
        content = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{where} is not JSON ({error}); only tokenizer.json files are read, never pickles or "
            "SentencePiece models"
        ) from None
    if not isinstance(content, dict) or "model" not in content:
        raise UsageError(f"{where} is no tokenizer.json: it has no model")
    return content


def import_tokenizers() -> Any:
    """The package tokenizers, told to keep to the thread that calls it.

    Raises:
        UsageError: it is not installed.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import tokenizers
    except ImportError:
        raise UsageError(
            f"this tokenizer needs the package tokenizers; {how_to_install('data')}"
        ) from None
    return tokenizers


def _encoder(source: bytes, where: str) -> Any:
    tokenizers = import_tokenizers()
    try:
        encoder = tokenizers.Tokenizer.from_str(source.decode())
    except Exception as error:  # the library raises plain Exception
        raise UsageError(f"{where} is no usable tokenizer.json: {error}") from None
    if type(encoder.normalizer).__name__ in UNICODE:
        encoder.normalizer = None
    encoder.no_padding()
    encoder.no_truncation()
    encoder.encode_special_tokens = True
    return encoder


def _spellings(encoder: Any, content: Mapping[str, Any]) -> list[bytes]:
    parts = json.dumps([content.get("pre_tokenizer"), content.get("decoder")])
    spell = _byte_level if '"ByteLevel"' in parts else _words
    vocabulary = encoder.get_vocab(with_added_tokens=False)
    added = encoder.get_added_tokens_decoder()
    spellings = [b""] * (max([*vocabulary.values(), *added]) + 1)
    for word, token in vocabulary.items():
        spellings[token] = spell(word)
    for token, word in added.items():
        spellings[token] = b"" if word.special else word.content.encode()
    return spellings


def byte_letters() -> dict[str, int]:
    """GPT-2's letter for each byte, reversed: printable ones stand for themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return letters | {chr(256 + i): byte for i, byte in enumerate(others)}


_LETTERS = byte_letters()


def _byte_level(word: str) -> bytes:
    if any(letter not in _LETTERS for letter in word):  # a special token's name
        return b""
    return bytes(_LETTERS[letter] for letter in word)


def _words(word: str) -> bytes:
    """Of SentencePiece's kind: '▁' for a space, '<0x0A>' for a byte."""
    if match := _BYTE.fullmatch(word):
        return bytes([int(match[1], 16)])
    return word.replace("▁", " ").encode()


def _end_of_document(encoder: Any, given: str, where: str) -> int | None:
    special = {t.content: token for token, t in encoder.get_added_tokens_decoder().items()}
    if given:
        if given not in special:
            known = ", ".join(sorted(special)[:12]) or "none"
            raise UsageError(
                f"{where} has no special token {given!r}; it has: {known}."
                f"{did_you_mean(given, special)}"
            )
        return special[given]
    return next((special[end] for end in ENDS if end in special), None)
