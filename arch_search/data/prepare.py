"""Turning a corpus into shards, once, whoever asks and however often."""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import numpy as np

from arch_search.data.corpora import Corpus, Document, find_corpus
from arch_search.data.corpora.base import SPLITS, SplitName
from arch_search.data.manifest import (
    FORMAT,
    DocumentRecord,
    Manifest,
    SplitRecord,
    check_files,
    file_record,
    read_manifest,
    write_manifest,
)
from arch_search.data.tokenizers import Tokenizer, find_tokenizer
from arch_search.errors import UsageError

TOKEN_LIMIT = 1 << 16  # shards hold uint16


def prepare(corpus: str, tokenizer: str, root: Path) -> Manifest:
    """Shards of a corpus under `root`/data, made now or found there and checked byte by byte.

    Two processes may call this at once: one works, the other waits and finds the result. A folder
    appears complete or not at all, and what a killed process left behind is cleared away.

    Raises:
        UsageError: an unknown name, a corpus that is not installed, shards that were damaged.
    """
    source, encoder = find_corpus(corpus), find_tokenizer(tokenizer)
    if encoder.vocabulary > TOKEN_LIMIT:
        raise UsageError(
            f"tokenizer {tokenizer!r} has {encoder.vocabulary} tokens; shards hold {TOKEN_LIMIT}"
        )
    data = Path(root) / "data"
    stem = f"{source.name}-{encoder.name}"
    data.mkdir(parents=True, exist_ok=True)
    with _locked(data / f".{stem}.lock"):
        found = _find(data, source, encoder)
        if found is not None:
            check_files(found, contents=True)
            return found
        for leftover in data.glob(f".{stem}.partial-*"):
            shutil.rmtree(leftover)
        partial = Path(tempfile.mkdtemp(prefix=f".{stem}.partial-", dir=data))
        try:
            return _publish(_write(source, encoder, partial), partial, data)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that the system frees when its holder dies."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _find(data: Path, corpus: Corpus, tokenizer: Tokenizer) -> Manifest | None:
    wanted = (FORMAT, corpus.revision, tokenizer.revision)
    for path in sorted(data.glob(f"{corpus.name}-{tokenizer.name}-*/manifest.json")):
        found = read_manifest(path.parent)
        if (found.format, found.corpus_revision, found.tokenizer_revision) == wanted:
            return found
    return None


@dataclass(kw_only=True, slots=True)
class _SplitWriter:
    """Appends documents to the files of one split."""

    tokens: BinaryIO
    documents: BinaryIO
    offsets: list[int] = field(default_factory=lambda: [0])
    bytes: int = 0

    def add(self, document: Document, tokenizer: Tokenizer) -> None:
        tokens = tokenizer.encode(document.text)
        record = DocumentRecord(
            name=document.name,
            stratum=document.stratum,
            bytes=len(document.text),
            tokens=len(tokens),
            sha256=sha256(document.text).hexdigest(),
        )
        self.tokens.write(np.append(tokens, tokenizer.end_of_document).astype("<u2").tobytes())
        self.documents.write(json.dumps(asdict(record), ensure_ascii=False).encode() + b"\n")
        self.offsets.append(self.offsets[-1] + len(tokens) + 1)
        self.bytes += len(document.text)

    def record(self) -> SplitRecord:
        return SplitRecord(
            documents=len(self.offsets) - 1, tokens=self.offsets[-1], bytes=self.bytes
        )


def _write(corpus: Corpus, tokenizer: Tokenizer, folder: Path) -> Manifest:
    with ExitStack() as files:
        writers: dict[SplitName, _SplitWriter] = {
            split: _SplitWriter(
                tokens=files.enter_context((folder / f"{split}.tokens").open("wb")),
                documents=files.enter_context((folder / f"{split}.documents.jsonl").open("wb")),
            )
            for split in SPLITS
        }
        for document in corpus.documents():
            writers[document.split].add(document, tokenizer)
    for split, writer in writers.items():
        np.array(writer.offsets, "<i8").tofile(folder / f"{split}.offsets")
    return Manifest(
        corpus=corpus.name,
        corpus_revision=corpus.revision,
        licence=corpus.licence,
        citation=corpus.citation,
        tokenizer=tokenizer.name,
        tokenizer_revision=tokenizer.revision,
        vocabulary=tokenizer.vocabulary,
        end_of_document=tokenizer.end_of_document,
        splits={split: writer.record() for split, writer in writers.items()},
        files={path.name: file_record(path) for path in sorted(folder.iterdir())},
    )


def _publish(manifest: Manifest, partial: Path, data: Path) -> Manifest:
    """Let the finished folder appear under its name in one step, after its bytes are on disk."""
    write_manifest(manifest, partial)
    for path in partial.iterdir():
        with path.open("rb") as written:
            os.fsync(written.fileno())
    partial.chmod(0o755)
    final = data / manifest.folder_name
    os.rename(partial, final)
    return read_manifest(final)
