"""What stands in a folder of prepared shards, as data with a hash.

<root>/data/<corpus>-<tokenizer>-<hash>/
    manifest.json              what this module reads and writes
    <split>.tokens             uint16 or uint32, little-endian: each document, then its
                               end-of-document token; absent where tokens are read in place
    <split>.offsets            int64, little-endian: where document i begins; one more for the end
    <split>.documents.jsonl    name, stratum, bytes, tokens and sha256 of each document
    tokenizer.spellings        what each token spells, if no name of the registry says it
    tokenizer.json             the tokenizer, if it came from a file or was trained here
"""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from arch_search.data.corpora.base import SplitName
from arch_search.data.fingerprints import fingerprint
from arch_search.data.records import FileRecord
from arch_search.data.token_files.base import TokenType
from arch_search.errors import UsageError
from arch_search.files import write_atomic
from arch_search.spec import STRICT, content_hash

FORMAT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitRecord:
    """How much there is in a split. `bytes` are those of the text, without special tokens."""

    documents: int
    tokens: int  # end-of-document tokens included
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentRecord:
    """One document of a split; `sha256` is that of its UTF-8 bytes."""

    name: str
    stratum: str
    bytes: int
    tokens: int  # its end-of-document token not counted
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeRecord:
    """A range of somebody else's token file, and that file as it was."""

    path: str  # absolute; not part of the manifest's hash
    type: TokenType
    start: int  # bytes
    count: int  # tokens
    file: FileRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """Prepared data. Its hash covers the text, the splits and the tokens, not where they lie."""

    format: int = FORMAT
    corpus: str
    corpus_revision: str
    licence: str
    citation: str
    tokenizer: str
    tokenizer_revision: str
    vocabulary: int
    end_of_document: int
    splits: dict[SplitName, SplitRecord]
    files: dict[str, FileRecord]
    token_type: Literal["uint16", "uint32"] = "uint16"
    ranges: dict[SplitName, tuple[RangeRecord, ...]] = field(default_factory=dict)
    folder: Path = field(default_factory=Path)

    @property
    def hash(self) -> str:
        """Sixteen hex digits over everything but the folder and the paths of token files."""
        content = _content(self)
        content["ranges"] = {
            split: [{**record, "path": ""} for record in records]
            for split, records in content["ranges"].items()
        }
        for name, default in (("token_type", "uint16"), ("ranges", {})):
            if content[name] == default:
                del content[name]  # as before there was a choice: prepared data keep their hash
        return content_hash(content)

    @property
    def folder_name(self) -> str:
        return f"{self.corpus}-{self.tokenizer}-{self.hash}"


for _record in (FileRecord, SplitRecord, DocumentRecord, RangeRecord, Manifest):
    _record.__pydantic_config__ = STRICT  # type: ignore[attr-defined]

_MANIFEST = TypeAdapter(Manifest)


def _content(manifest: Manifest) -> dict:
    content = asdict(manifest)
    del content["folder"]
    return content


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write manifest.json into `folder`."""
    content = {"hash": manifest.hash, **_content(manifest)}
    text = json.dumps(content, indent=1, ensure_ascii=False)
    write_atomic(folder / "manifest.json", text + "\n")


def read_manifest(folder: Path) -> Manifest:
    """Read a folder's manifest.

    Raises:
        UsageError: it is unreadable or has been changed since it was written.
    """
    path = folder / "manifest.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        expected = content.pop("hash")
        manifest = replace(_MANIFEST.validate_python(content), folder=folder)
    except (OSError, KeyError, AttributeError, TypeError, ValueError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise UsageError(f"{path} is no readable manifest: {reason}") from error
    if any(Path(name).name != name for name in manifest.files):
        raise UsageError(f"{path} names a file outside its folder; it was not written here")
    if manifest.hash != expected:
        raise UsageError(
            f"{path} was changed after it was written (hash {manifest.hash}, it says {expected}); "
            "delete its folder and prepare the data again"
        )
    return manifest


def load_manifest(root: Path, hash: str) -> Manifest:
    """The manifest of that hash under the storage root.

    Raises:
        UsageError: there is none; names those that are there.
    """
    data = Path(root) / "data"
    folders = [path.parent for path in sorted(data.glob("[!.]*/manifest.json"))]
    for folder in folders:
        if hash and folder.name.endswith(f"-{hash}"):
            return read_manifest(folder)
    there = ", ".join(folder.name for folder in folders) or "none"
    raise UsageError(f"no prepared data with hash {hash!r} under {data}; there: {there}")


def check_files(manifest: Manifest, *, contents: bool) -> None:
    """Compare the files with the manifest: their sizes, and with `contents` every byte.

    Raises:
        UsageError: a file is missing or is not what was written.
    """
    for name, expected in manifest.files.items():
        path = manifest.folder / name
        if problem := _problem(path, expected, contents=contents):
            raise UsageError(
                f"{path} {problem}; delete the folder {manifest.folder} and prepare the data again"
            )
    placed = {r.path: r.file for records in manifest.ranges.values() for r in records}
    for name, expected in placed.items():
        if problem := _problem(Path(name), expected, contents=contents):
            raise UsageError(
                f"{name} {problem}; it is read in place: put the file back, or prepare the data "
                "again under what it holds now"
            )


def _problem(path: Path, expected: FileRecord, *, contents: bool) -> str | None:
    if not path.is_file():
        return "is missing"
    if (size := path.stat().st_size) != expected.size:
        return f"has {size} bytes, not the {expected.size} that were written"
    if contents and fingerprint(path) != expected:
        return "holds other bytes than were written"
    return None
