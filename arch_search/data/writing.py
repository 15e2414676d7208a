"""Documents to shards: tokenised by several threads, written in order, gone on with after a kill.

What is written is settled now and then: the files are flushed, and their sizes noted. A later
process cuts them back to that and reads on behind the documents that they hold, so the bytes are
those of a preparation that was never stopped. Memory holds a few pieces of work for each thread,
whatever the size of the corpus.
"""

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from arch_search.data.corpora import Corpus, Document
from arch_search.data.corpora.base import SPLITS, SplitName
from arch_search.data.fingerprints import file_record
from arch_search.data.manifest import DocumentRecord, Manifest, SplitRecord
from arch_search.data.spellings import FILE, write_spellings
from arch_search.data.tokenizers import Tokenizer
from arch_search.errors import UsageError
from arch_search.files import read_json, write_atomic

CHUNK_BYTES = 1 << 20  # of text, in one piece of work
CHUNK_DOCUMENTS = 4096
AHEAD = 3  # pieces of work for each thread
SETTLE_SECONDS = 5.0
PROGRESS = "progress.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """How far a preparation is. `total_bytes` is about that of the text, None if not known."""

    documents: int
    bytes: int
    total_bytes: int | None


Report = Callable[[Done], None]


def no_report(done: Done) -> None:
    """Say nothing."""


@dataclass(slots=True)
class _Progress:
    """What the files hold: documents in all, then sizes and counts by split."""

    documents: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    counts: dict[SplitName, list[int]] = field(
        default_factory=lambda: {split: [0, 0, 0] for split in SPLITS}
    )  # documents, tokens, bytes of text

    @property
    def bytes(self) -> int:
        return sum(count[2] for count in self.counts.values())


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A piece of work done: bytes for the files of each split, and what they add."""

    documents: int
    tokens: dict[SplitName, bytes]
    records: dict[SplitName, bytes]
    lengths: dict[SplitName, list[int]]  # tokens of each document, its end included
    bytes: dict[SplitName, int]


def write(
    corpus: Corpus, tokenizer: Tokenizer, folder: Path, *, workers: int, report: Report
) -> Manifest:
    """Write the shards of a corpus into `folder`, going on from what is there.

    Raises:
        UsageError: text that is not what it should be, by its document.
    """
    progress = _resume(folder)

    def tell() -> None:
        report(Done(documents=progress.documents, bytes=progress.bytes, total_bytes=corpus.size))

    tell()
    with ExitStack() as stack:
        files = _open(folder, progress, stack)
        pool = stack.enter_context(ThreadPoolExecutor(workers, thread_name_prefix="tokenise"))
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        rest = islice(corpus.documents(), progress.documents, None)
        settled = time.monotonic()
        for encoded in _encoded(pool, rest, tokenizer, AHEAD * workers):
            _append(encoded, files, progress)
            if time.monotonic() - settled > SETTLE_SECONDS:
                _settle(files, progress, folder)
                settled = time.monotonic()
            tell()
        _settle(files, progress, folder)
    return _finish(corpus, tokenizer, progress, folder)


def _names() -> list[str]:
    kinds = ("tokens", "offsets", "documents.jsonl")
    return [f"{split}.{kind}" for split in SPLITS for kind in kinds]


def _resume(folder: Path) -> _Progress:
    for path in folder.iterdir():  # what a process left that was killed amid a write
        if path.name not in {*_names(), PROGRESS, "tokenizer.json"}:
            path.unlink()
    known = read_json(folder / PROGRESS)
    return _Progress(**known) if known else _Progress()


def _open(folder: Path, progress: _Progress, stack: ExitStack) -> dict[str, BinaryIO]:
    files: dict[str, BinaryIO] = {}
    for name in _names():
        path = folder / name
        path.touch()
        os.truncate(path, progress.sizes.get(name, 0))
        files[name] = stack.enter_context(path.open("ab"))
        if name.endswith(".offsets") and not progress.sizes.get(name):
            files[name].write(np.zeros(1, "<i8").tobytes())
    return files


def _encoded(
    pool: ThreadPoolExecutor, documents: Iterator[Document], tokenizer: Tokenizer, ahead: int
) -> Iterator[_Encoded]:
    """Work done, in the order of the documents; at most `ahead` pieces are under way."""
    chunks = _chunks(documents)
    pending: deque[Future[_Encoded]] = deque()
    for chunk in chunks:
        pending.append(pool.submit(_encode, chunk, tokenizer))
        if len(pending) >= ahead:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _chunks(documents: Iterator[Document]) -> Iterator[list[Document]]:
    chunk: list[Document] = []
    size = 0
    for document in documents:
        chunk.append(document)
        size += len(document.text)
        if size >= CHUNK_BYTES or len(chunk) >= CHUNK_DOCUMENTS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _token_type(tokenizer: Tokenizer) -> Literal["uint16", "uint32"]:
    return "uint16" if tokenizer.vocabulary <= 1 << 16 else "uint32"


def _encode(documents: list[Document], tokenizer: Tokenizer) -> _Encoded:
    type = np.dtype(_token_type(tokenizer)).newbyteorder("<")
    end = np.array([tokenizer.end_of_document], type).tobytes()
    tokens: dict[SplitName, list[bytes]] = {split: [] for split in SPLITS}
    records: dict[SplitName, list[bytes]] = {split: [] for split in SPLITS}
    lengths: dict[SplitName, list[int]] = {split: [] for split in SPLITS}
    sizes: dict[SplitName, int] = dict.fromkeys(SPLITS, 0)
    for document in documents:
        try:
            encoded = tokenizer.encode(document.text)
        except UsageError as error:
            raise UsageError(f"document {document.name!r}: {error}") from None
        split = document.split
        tokens[split] += [encoded.astype(type).tobytes(), end]
        records[split].append(_record(document, len(encoded)))
        lengths[split].append(len(encoded) + 1)
        sizes[split] += len(document.text)
    return _Encoded(
        len(documents),
        {split: b"".join(parts) for split, parts in tokens.items()},
        {split: b"".join(parts) for split, parts in records.items()},
        lengths,
        sizes,
    )


def _record(document: Document, tokens: int) -> bytes:
    record = DocumentRecord(
        name=document.name,
        stratum=document.stratum,
        bytes=len(document.text),
        tokens=tokens,
        sha256=sha256(document.text).hexdigest(),
    )
    return json.dumps(asdict(record), ensure_ascii=False).encode() + b"\n"


def _append(encoded: _Encoded, files: dict[str, BinaryIO], progress: _Progress) -> None:
    for split in SPLITS:
        count = progress.counts[split]
        files[f"{split}.tokens"].write(encoded.tokens[split])
        files[f"{split}.documents.jsonl"].write(encoded.records[split])
        ends = count[1] + np.cumsum(encoded.lengths[split], dtype=np.int64)
        files[f"{split}.offsets"].write(ends.astype("<i8").tobytes())
        count[0] += len(ends)
        count[1] = int(ends[-1]) if len(ends) else count[1]
        count[2] += encoded.bytes[split]
    progress.documents += encoded.documents


def _settle(files: dict[str, BinaryIO], progress: _Progress, folder: Path) -> None:
    for name, file in files.items():
        file.flush()
        os.fsync(file.fileno())
        progress.sizes[name] = file.tell()
    write_atomic(folder / PROGRESS, json.dumps(asdict(progress)))


def _finish(corpus: Corpus, tokenizer: Tokenizer, progress: _Progress, folder: Path) -> Manifest:
    keep_tokenizer(tokenizer, folder)
    written = sorted(path for path in folder.iterdir() if path.name != PROGRESS)
    manifest = Manifest(
        corpus=corpus.name,
        corpus_revision=corpus.revision,
        licence=corpus.licence,
        citation=corpus.citation,
        tokenizer=tokenizer.name,
        tokenizer_revision=tokenizer.revision,
        vocabulary=tokenizer.vocabulary,
        end_of_document=tokenizer.end_of_document,
        splits={
            split: SplitRecord(documents=documents, tokens=tokens, bytes=size)
            for split, (documents, tokens, size) in progress.counts.items()
        },
        files={path.name: file_record(path) for path in written},
        token_type=_token_type(tokenizer),
    )
    (folder / PROGRESS).unlink()
    return manifest


def keep_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Keep what a tokenizer spells, unless it is `bytes`, and the file that it was read from."""
    if tokenizer.name != "bytes":
        write_spellings(tokenizer.spellings, folder / FILE)
    if tokenizer.source:
        (folder / "tokenizer.json").write_bytes(tokenizer.source)
