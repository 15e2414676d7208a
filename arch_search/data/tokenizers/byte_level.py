"""Bytes as tokens: 256 values and an end of document; bits per byte are the loss over ln 2."""

import numpy as np

from arch_search.data.tokenizers.base import Tokenizer

BYTES = Tokenizer(
    name="bytes",
    summary="UTF-8 bytes, and 256 for the end of a document",
    end_of_document=256,
    spellings=(*(bytes([value]) for value in range(256)), b""),
    encode=lambda text: np.frombuffer(text, np.uint8).astype(np.uint16),
)
