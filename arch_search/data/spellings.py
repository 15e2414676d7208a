"""What the tokens of prepared data spell, kept beside them: nothing else is needed to read them.

tokenizer.spellings, little-endian: uint32 number of tokens, uint32 length in bytes of each, then
the spellings one after the other.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from arch_search.data.manifest import Manifest
from arch_search.data.tokenizers import Tokenizer, find_tokenizer
from arch_search.errors import UsageError

FILE = "tokenizer.spellings"


def write_spellings(spellings: Sequence[bytes], path: Path) -> None:
    """Write the spellings of tokens 0, 1, …"""
    head = np.array([len(spellings), *map(len, spellings)], "<u4")
    path.write_bytes(head.tobytes() + b"".join(spellings))


def read_spellings(path: Path) -> tuple[bytes, ...]:
    """Read them back.

    Raises:
        UsageError: the file is not what was written.
    """
    data = path.read_bytes()
    count = int.from_bytes(data[:4], "little")
    ends = np.cumsum(np.frombuffer(data[4 : 4 + 4 * count], "<u4"), dtype=np.int64)
    letters = data[4 + 4 * count :]
    if len(ends) != count or (count and ends[-1] != len(letters)):
        raise UsageError(f"{path} is damaged; delete its folder and prepare the data again")
    begins = [0, *ends[:-1].tolist()]
    return tuple(letters[a:b] for a, b in zip(begins, ends.tolist(), strict=True))


def spellings_of(manifest: Manifest) -> tuple[bytes, ...]:
    """What each token of prepared data spells, in UTF-8 bytes; nothing for special ones."""
    if FILE in manifest.files:
        return _read_once(manifest.folder / FILE, manifest.files[FILE].sha256)
    tokenizer = find_tokenizer(manifest.tokenizer)
    assert isinstance(tokenizer, Tokenizer)
    return tokenizer.spellings


@lru_cache(maxsize=4)
def _read_once(path: Path, sha256: str) -> tuple[bytes, ...]:
    return read_spellings(path)
