"""The sha256 of files, computed once while a file stays as it was.

Large corpora are asked for their identity at each plan. What a file's size, time and inode say is
believed only if the file had been left alone for a while when it was read: a write within the same
tick of the clock could not be told.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from arch_search.data.records import FileRecord
from arch_search.files import write_atomic

SETTLED_SECONDS = 2.0


def file_record(path: Path) -> FileRecord:
    """Size and sha256 of a file, read in full."""
    digest, size = sha256(), 0
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
            size += len(piece)
    return FileRecord(size=size, sha256=digest.hexdigest())


class Fingerprints:
    """Records of files by path, kept in one JSON file; losing it costs reading them again."""

    def __init__(self, path: Path | None = None) -> None:
        """Keep what is known at `path`, or in this process only."""
        self.path = path
        self._known: dict[str, list] = {}
        self._unsaved = False
        if path is not None:
            with contextlib.suppress(OSError, ValueError):
                known = json.loads(path.read_bytes())
                self._known = known if isinstance(known, dict) else {}

    def record(self, path: Path) -> FileRecord:
        """Size and sha256 of a file, from memory if it has not been touched since."""
        key, stat = os.path.abspath(path), path.stat()
        stamp = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
        known = self._known.get(key)
        if isinstance(known, list) and known[:-1] == stamp and isinstance(known[-1], str):
            return FileRecord(size=stat.st_size, sha256=known[-1])
        record = file_record(path)
        if time.time() - max(stat.st_mtime, stat.st_ctime) > SETTLED_SECONDS:
            self._known[key] = [*stamp, record.sha256]
            self._unsaved = True
        return record

    def save(self) -> None:
        """Write down what was learnt since the last time, if the disk lets it."""
        if self.path is None or not self._unsaved:
            return
        with contextlib.suppress(OSError):
            write_atomic(self.path, json.dumps(self._known), durable=False)
            self._unsaved = False


_current = Fingerprints()


@contextlib.contextmanager
def kept_fingerprints(path: Path) -> Iterator[None]:
    """Remember fingerprints at `path`, for this process and later ones."""
    global _current
    if _current.path != path:
        _current = Fingerprints(path)
    try:
        yield
    finally:
        _current.save()


def fingerprint(path: Path) -> FileRecord:
    """Size and sha256 of a file, read again only if it was touched since it was last read."""
    return _current.record(path)
