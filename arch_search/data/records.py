"""Small records that manifests and fingerprints share."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRecord:
    """A file as it was written."""

    size: int  # bytes
    sha256: str
