"""OpenAI's cl100k_base, without a network, from the package bpe-openai."""

from functools import cache

import numpy as np

from arch_search.data.corpora.text import pieces
from arch_search.data.tokenizers.base import Tokenizer, require_lossless
from arch_search.data.tokenizers.json_file import PIECE_BYTES
from arch_search.errors import UsageError
from arch_search.extras import how_to_install

END_OF_DOCUMENT = 100257


@cache
def cl100k() -> Tokenizer:
    """cl100k_base; its vocabulary is that of GPT-4, special tokens spell nothing.

    Raises:
        UsageError: the package is not installed.
    """
    try:
        import bpe_openai
    except ImportError:
        raise UsageError(f"cl100k needs the package bpe-openai; {how_to_install('data')}") from None
    encoding = bpe_openai.get_encoding("cl100k_base")
    spellings = [b""] * encoding.n_vocab
    for token in range(END_OF_DOCUMENT - 1):  # what follows is special, or not used
        spellings[token] = encoding.decode_single_token_bytes(token)
    spelt = tuple(spellings)

    def encode(text: bytes) -> np.ndarray:
        tokens: list[int] = []
        for piece in pieces(text, PIECE_BYTES):
            tokens += encoding.encode_ordinary(piece.decode())
        require_lossless(text, tokens, spelt)
        return np.array(tokens, np.uint32)

    return Tokenizer(
        name="cl100k",
        summary="OpenAI's cl100k_base (bpe-openai)",
        end_of_document=END_OF_DOCUMENT,
        spellings=spelt,
        encode=encode,
    )
