"""Our tokenizer as a folder that transformers reads: RULER's tasks measure prompts with it."""

import json
from pathlib import Path

from arch_search.data.tokenizers import Tokenizer
from arch_search.data.tokenizers.json_file import byte_letters
from arch_search.files import write_atomic


def write_tokenizer(tokenizer: Tokenizer, cache: Path) -> str:
    """Write tokenizer.json and its configuration under `cache`; returns their folder.

    Raises:
        ValueError: the tokenizer is neither bytes nor from a tokenizer.json.
    """
    source = tokenizer.source
    if not source and tokenizer.name == "bytes":
        source = json.dumps(_bytes_as_bpe()).encode()
    if not source:
        raise ValueError(f"RULER's tasks need a tokenizer.json, which {tokenizer.name} has not")
    folder = cache / f"{tokenizer.name}-{tokenizer.revision.replace('/', '-')}"
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "tokenizer.json", source)
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1 << 30}
    write_atomic(folder / "tokenizer_config.json", json.dumps(kind))
    return str(folder)


def _bytes_as_bpe() -> dict[str, object]:
    """A byte-level BPE that merges nothing: token b is the byte b."""
    level = {"add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", **level},
        "decoder": {"type": "ByteLevel", **level},
        "model": {"type": "BPE", "vocab": byte_letters(), "merges": []},
    }
