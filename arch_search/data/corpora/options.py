"""How a corpus with options is written: one kind and its keys, `{folder: texts, name: notes}`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from arch_search.errors import UsageError
from blocks.options import did_you_mean, option, read_options


@dataclass(frozen=True, kw_only=True, slots=True)
class TextOptions:
    """What every corpus of text takes besides its own options."""

    name: str = option("", "name in tables and folders; taken from the path if not given")
    licence: str = option("", "licence of the text, kept with the prepared data")
    min_bytes: int = option(0, "shorter documents are left out")
    max_bytes: int = option(0, "longer documents are left out; 0: none")
    cut_every: int = option(0, "documents are cut at line ends into pieces of this many bytes")

    def __post_init__(self) -> None:
        for name in ("min_bytes", "max_bytes", "cut_every"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} is {getattr(self, name)}; expected 0 or more")
        if 0 < self.max_bytes < self.min_bytes:
            raise UsageError(
                f"max_bytes is {self.max_bytes}, below min_bytes ({self.min_bytes}): no document "
                "would be left"
            )


def read_kind(mapping: Mapping[str, Any], kinds: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The kind that a mapping names by its one key among `kinds`, and the other keys.

    Raises:
        UsageError: no kind or two; names the nearest one.
    """
    named = [key for key in mapping if key in kinds]
    known = ", ".join(sorted(kinds))
    if len(named) != 1:
        given = ", ".join(map(repr, mapping)) or "nothing"
        near = "" if named else did_you_mean(str(next(iter(mapping), "")), kinds)
        raise UsageError(f"expected one of the keys {known}, got {given}.{near}")
    (kind,) = named
    return kind, {str(key): value for key, value in mapping.items() if key != kind}


def read(cls: type, mapping: Mapping[str, Any], kind: str) -> Any:
    """Options of one kind from plain values.

    Raises:
        UsageError: an unknown key, with the nearest one, or a value of the wrong type.
    """
    try:
        return read_options(cls, mapping, owner=kind)
    except UsageError:
        raise
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from None
