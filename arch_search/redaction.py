"""Takes passwords and tokens out of whatever is written, shown or sent.

Secrets come in two ways: inside an address (`https://me:word@host`, `?token=…`), and in environment
variables whose name says so. A tracking address with a password is kept in one file that only its
owner can read; plans, logs, tags and reports carry the address without it.
"""

import os
import re
from pathlib import Path
from typing import Any, TextIO

from arch_search.files import dump_json, read_json, write_private

HIDDEN = "***"
CREDENTIALS = "credentials.json"
SHORTEST = 6  # a shorter value of a variable would take ordinary words out of a text

_IN_ADDRESS = re.compile(r"([a-zA-Z][\w+.-]*://[^\s/@:'\"]*):([^\s/'\"]+)@")
_WHOLE_USER = re.compile(r"(https?://)([^\s/@:'\"]{16,})@")  # a token in the user's place
_IN_QUERY = re.compile(
    r"([?&;][\w.-]*(?:password|passwd|pwd|token|secret|api_?key|signature)[\w.-]*=)([^&;\s'\"#]+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(\bbearer\s+)[\w.~+/=-]{6,}", re.IGNORECASE)
_VARIABLE = re.compile(
    r"TOKEN(?!IZER|S)|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_?KEY|CREDENTIAL", re.I
)
_NO_SECRET = re.compile(r"(_PATH|_FILE|_MODE|_DIR|_URL)$", re.I)


def hide_secrets(text: str) -> str:
    """A text without the passwords of addresses and the values of secret variables."""
    text = _IN_ADDRESS.sub(rf"\1:{HIDDEN}@", text)
    text = _WHOLE_USER.sub(rf"\1{HIDDEN}@", text)
    text = _IN_QUERY.sub(rf"\1{HIDDEN}", text)
    text = _BEARER.sub(rf"\1{HIDDEN}", text)
    for value in _secret_values():
        text = text.replace(value, HIDDEN)
    return text


def _secret_values() -> list[str]:
    """Longest first, so that a secret which contains another goes as a whole."""
    found = {
        value
        for name, value in os.environ.items()
        if _VARIABLE.search(name) and not _NO_SECRET.search(name) and len(value) >= SHORTEST
    }
    return sorted(found, key=len, reverse=True)


def hide_in(value: Any) -> Any:
    """Plain data with every text in it hidden as by `hide_secrets`."""
    match value:
        case str():
            return hide_secrets(value)
        case dict():
            return {key: hide_in(item) for key, item in value.items()}
        case list() | tuple():
            return [hide_in(item) for item in value]
    return value


class HidingStream:
    """A text stream that what a run prints goes through, line by line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._begun = stream, ""

    def write(self, text: str) -> int:
        lines = (self._begun + text).splitlines(keepends=True)
        self._begun = lines.pop() if lines and not lines[-1].endswith("\n") else ""
        self._stream.write(hide_secrets("".join(lines)))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        """Write the line that was begun; the stream below is left open."""
        self._stream.write(hide_secrets(self._begun))
        self._begun = ""
        self.flush()

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._stream.fileno()


def keep_secret(root: Path, address: str) -> str:
    """The address without its secret, which is kept under the root for `with_secret`."""
    shown = hide_secrets(address)
    if shown != address:
        kept = {**(read_json(root / CREDENTIALS) or {}), shown: address}
        write_private(root / CREDENTIALS, dump_json(kept))
    return shown


def with_secret(root: Path, address: str) -> str:
    """The address as it was given, if this root keeps its secret."""
    if HIDDEN not in address:
        return address
    return (read_json(root / CREDENTIALS) or {}).get(address, address)


def without_secrets(root: Path, mapping: dict[str, Any]) -> dict[str, Any]:
    """An experiment file as data, fit to be shown; the addresses in it stay usable."""
    for section, key in (("tracking", "uri"), ("sweep", "storage")):
        given = mapping.get(section)
        if isinstance(given, dict) and isinstance(given.get(key), str):
            mapping = {**mapping, section: {**given, key: keep_secret(root, given[key])}}
    return hide_in(mapping)
