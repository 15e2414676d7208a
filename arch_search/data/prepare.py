"""Turning a corpus into shards, once, whoever asks and however often."""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from arch_search.data.corpora import Corpus, TokenCorpus, find_corpus
from arch_search.data.fingerprints import kept_fingerprints
from arch_search.data.in_place import place, ranges_of
from arch_search.data.manifest import (
    FORMAT,
    Manifest,
    check_files,
    read_manifest,
    write_manifest,
)
from arch_search.data.tokenizers import Recipe, Tokenizer, find_tokenizer
from arch_search.data.writing import Report, no_report, write
from arch_search.errors import UsageError
from arch_search.files import sync_folder, write_atomic
from arch_search.spec import content_hash

Spec = str | Mapping[str, Any]


def prepare(
    corpus: Spec,
    tokenizer: Spec,
    root: Path,
    *,
    workers: int = 0,
    report: Report = no_report,
) -> Manifest:
    """Shards of a corpus under `root`/data, made now or found there and checked.

    Two processes may call this at once: one works, the other waits and finds the result. A folder
    appears complete or not at all. What a killed process left is gone on from, if it is of the
    same text and tokenizer, and cleared away if not; the result is the same.

    Args:
        workers: threads that tokenise; 0: one for each CPU that this process may use.
        report: called with what is done, now and then.

    Raises:
        UsageError: an unknown name, text or tokens that are not there or are damaged, shards that
            were changed, a full disk.
    """
    data = Path(root) / "data"
    data.mkdir(parents=True, exist_ok=True)
    with kept_fingerprints(data / ".fingerprints.json"):
        return _prepare(corpus, tokenizer, data, workers or _cpus(), report)


def _prepare(corpus: Spec, tokenizer: Spec, data: Path, workers: int, report: Report) -> Manifest:
    source, wanted = find_corpus(corpus), find_tokenizer(tokenizer)
    stem = f"{source.name}-{wanted.name}"
    revision = wanted.revision
    if isinstance(wanted, Recipe):
        revision = f"{revision}/{source.revision}"
    with _locked(data / f".{stem}.lock"):
        found = _find(data, stem, source.revision, revision)
        if found is not None:
            found = _where_they_are(found, source)
            check_files(found, contents=True)
            return found
        partial = data / f".{stem}.partial-{content_hash([FORMAT, source.revision, revision])}"
        for leftover in data.glob(f".{stem}.partial-*"):
            if leftover != partial:
                shutil.rmtree(leftover)
        partial.mkdir(exist_ok=True)
        with _full_disk(data):
            manifest = _make(source, wanted, revision, partial, workers, report)
            _check_unchanged(corpus, source, partial)
            return _publish(manifest, partial, data)


def _make(
    source: Corpus | TokenCorpus,
    wanted: Tokenizer | Recipe,
    revision: str,
    partial: Path,
    workers: int,
    report: Report,
) -> Manifest:
    if isinstance(source, TokenCorpus):
        if isinstance(wanted, Recipe):
            raise UsageError(
                f"{source.name} holds tokens that are made; give the tokenizer that made them, not "
                f"{wanted.name}, which would be trained here"
            )
        return place(source, wanted, partial, report)
    encoder = _trained(wanted, source, revision, partial) if isinstance(wanted, Recipe) else wanted
    return write(source, encoder, partial, workers=workers, report=report)


def _trained(recipe: Recipe, corpus: Corpus, revision: str, partial: Path) -> Tokenizer:
    kept = partial / "tokenizer.json"
    if not kept.is_file():
        texts = (document.text for document in corpus.documents() if document.split == "train")
        write_atomic(kept, recipe.train(texts, revision).source)
    return recipe.read(kept.read_bytes(), revision)


def _check_unchanged(spec: Spec, corpus: Corpus | TokenCorpus, partial: Path) -> None:
    if find_corpus(spec).revision != corpus.revision:
        shutil.rmtree(partial)
        raise UsageError(f"the files of {corpus.name} changed while they were read; run it again")


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that the system frees when its holder dies."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _full_disk(data: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UsageError(
            f"no space is left in {data}; free some and run this again, it goes on where it stood"
        ) from None


def _find(data: Path, stem: str, corpus_revision: str, revision: str) -> Manifest | None:
    for path in sorted(data.glob(f"{stem}-*/manifest.json")):
        found = read_manifest(path.parent)
        wanted = (FORMAT, corpus_revision, revision)
        if (found.format, found.corpus_revision, found.tokenizer_revision) == wanted:
            return found
    return None


def _where_they_are(found: Manifest, source: Corpus | TokenCorpus) -> Manifest:
    """The manifest with its token files where they are now; the same files may have been moved."""
    if not isinstance(source, TokenCorpus):
        return found
    moved = replace(found, ranges=ranges_of(source))
    if moved != found and moved.hash == found.hash:
        write_manifest(moved, found.folder)
        return moved
    return found


def _publish(manifest: Manifest, partial: Path, data: Path) -> Manifest:
    """Let the finished folder appear under its name in one step, after its bytes are on disk."""
    write_manifest(manifest, partial)
    for path in partial.iterdir():
        with path.open("rb") as written:
            os.fsync(written.fileno())
    final = data / manifest.folder_name
    os.rename(partial, final)
    sync_folder(data)
    return read_manifest(final)
