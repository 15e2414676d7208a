"""Whether a checkpoint still holds what was written: its files' hashes, kept in its progress.json.

A disk or a copy may flip a bit, and weights with a flipped bit load without a word. Free of torch,
so that whoever claims a run can look.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

PROGRESS = "progress.json"
_HASHES = "sha256"


def write_progress(folder: Path, progress: dict[str, Any]) -> None:
    """Write progress.json last, with a hash of every file beside it and of itself."""
    hashes = {path.name: _file_hash(path) for path in sorted(folder.iterdir())}
    hashes[PROGRESS] = _text_hash(json.loads(json.dumps(progress)))  # as it will be read
    text = json.dumps({**progress, _HASHES: hashes}, indent=1)
    (folder / PROGRESS).write_text(text)


def read_progress(folder: Path) -> dict[str, Any]:
    """What `write_progress` was given."""
    progress = json.loads((folder / PROGRESS).read_text())
    progress.pop(_HASHES, None)  # earlier versions kept none
    return progress


def damage(folder: Path) -> str:
    """What is wrong with a checkpoint, in words; empty if it is whole, or kept no hashes."""
    try:
        progress = json.loads((folder / PROGRESS).read_text())
    except FileNotFoundError:
        return ""
    except (ValueError, OSError) as error:
        return f"{PROGRESS} cannot be read ({error})"
    hashes = progress.pop(_HASHES, None) if isinstance(progress, dict) else {}
    if hashes is None:
        return ""
    if not isinstance(hashes, dict) or hashes.get(PROGRESS) != _text_hash(progress):
        return f"{PROGRESS} is not what was written"
    for name, expected in hashes.items():
        if name == PROGRESS:
            continue
        try:
            found = _file_hash(folder / name)
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        if found != expected:
            return f"{name} is not what was written"
    return ""


def weights_hash(folder: Path) -> str:
    """The beginning of the hash of a checkpoint's weights, kept or computed."""
    file = folder / "model.safetensors"
    kept = {}
    if (folder / PROGRESS).is_file():
        kept = json.loads((folder / PROGRESS).read_text()).get(_HASHES) or {}
    return (kept.get(file.name) or _file_hash(file))[:16]


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _text_hash(progress: Any) -> str:
    return hashlib.sha256(json.dumps(progress, sort_keys=True).encode()).hexdigest()
