"""Files that are wholly there or not at all, whatever is killed while they are written."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arch_search.errors import UsageError


def sync_folder(path: Path) -> None:
    """Make a folder's entries (a rename in it) survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary(path: Path, data: str | bytes, *, durable: bool, mode: int = 0o644) -> str:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.chmod(name, mode)
    except OSError:  # a full disk: a heartbeat must not add a file to it with each beat
        os.unlink(name)
        raise
    return name


def write_atomic(path: Path, data: str | bytes, *, durable: bool = True) -> None:
    """Replace a file in one step; `durable=False` skips the flush to disk (for heartbeats)."""
    name = _temporary(path, data, durable=durable)
    os.replace(name, path)
    if durable:
        sync_folder(path.parent)


def write_private(path: Path, data: str | bytes) -> None:
    """Replace a file that only its owner may read; it is never open to others in between."""
    name = _temporary(path, data, durable=True, mode=0o600)
    os.replace(name, path)
    sync_folder(path.parent)


def write_once(path: Path, data: str | bytes, *, durable: bool = True) -> bool:
    """Create a file in one step. False, and nothing changed, if it is there already."""
    name = _temporary(path, data, durable=durable)
    try:
        os.link(name, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(name)
    if durable:
        sync_folder(path.parent)
    return True


def read_json(path: Path) -> Any | None:
    """The JSON value of a file; None if there is no such file.

    Raises:
        UsageError: what stands there is no JSON. Files are written whole, so it was changed since.
    """
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except IsADirectoryError:
        raise _damaged(path, "it is a folder") from None
    try:
        return json.loads(text)
    except ValueError as error:
        raise _damaged(path, f"it is not JSON ({error})") from None


def read_object(path: Path, parts: Mapping[str, type]) -> dict[str, Any] | None:
    """A JSON object that has at least `parts`, each of its type; None if there is no such file.

    Raises:
        UsageError: as `read_json`, or a part is not there, or is no such thing. What stands under
            "metrics" must be numbers.
    """
    value = read_json(path)
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _damaged(path, "it holds no object")
    for name, kind in parts.items():
        if not isinstance(value.get(name), kind):
            raise _damaged(path, f"{name!r} is missing, or not what it should be")
    if not all(isinstance(number, int | float) for number in value.get("metrics", {}).values()):
        raise _damaged(path, "'metrics' has what is no number")
    return value


def _damaged(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path} is damaged: {why}. Put it back from a copy, or remove it and resume the "
        "experiment: what it said is then done again"
    )


def dump_json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False)
