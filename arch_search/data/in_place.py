"""Token files of others: read through once for where documents begin and what they spell.

Nothing is copied. The folder holds the offsets and the records of documents; the manifest says
where the tokens lie.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

import numpy as np

from arch_search.data.corpora.base import SPLITS, SplitName
from arch_search.data.fingerprints import file_record
from arch_search.data.manifest import DocumentRecord, Manifest, RangeRecord, SplitRecord
from arch_search.data.shards import without_ends
from arch_search.data.token_files.base import TokenCorpus, TokenSplit
from arch_search.data.token_files.pieces import JoinedTokens, map_pieces
from arch_search.data.tokenizers import Tokenizer
from arch_search.data.writing import Done, Report, keep_tokenizer
from arch_search.errors import UsageError

BLOCK = 1 << 20  # tokens looked at at once
Tokens = np.ndarray | JoinedTokens


def ranges_of(corpus: TokenCorpus) -> dict[SplitName, tuple[RangeRecord, ...]]:
    """Where the tokens of each split lie, with the size and hash of their files."""
    return {
        split: tuple(
            RangeRecord(
                path=piece.path,
                type=piece.type,
                start=piece.start,
                count=piece.count,
                file=corpus.files[piece.path],
            )
            for piece in (corpus.splits[split].pieces if split in corpus.splits else ())
        )
        for split in SPLITS
    }


def place(corpus: TokenCorpus, tokenizer: Tokenizer, folder: Path, report: Report) -> Manifest:
    """Describe token files in `folder`.

    Raises:
        UsageError: a token that the tokenizer does not have, by its file's split and place.
    """
    keep_tokenizer(tokenizer, folder)
    splits: dict[SplitName, SplitRecord] = {}
    for split in SPLITS:
        found = corpus.splits.get(split, TokenSplit(pieces=(), offsets=np.zeros(1, np.int64)))
        tokens = map_pieces(found.pieces) if found.pieces else np.empty(0, "<u2")
        _check(tokens, tokenizer, f"the {split} split of {corpus.name}")
        offsets = found.offsets
        if offsets is None:
            offsets = _documents(tokens, tokenizer.end_of_document)
        offsets.astype("<i8").tofile(folder / f"{split}.offsets")
        size = documents = 0
        with (folder / f"{split}.documents.jsonl").open("wb") as lines:
            for record in _records(split, tokens, offsets, tokenizer):
                lines.write(json.dumps(asdict(record)).encode() + b"\n")
                size, documents = size + record.bytes, documents + 1
                report(Done(documents=documents, bytes=size, total_bytes=None))
        splits[split] = SplitRecord(documents=len(offsets) - 1, tokens=len(tokens), bytes=size)
    names = (f"{split}.{kind}" for split in SPLITS for kind in ("offsets", "documents.jsonl"))
    kept = ("tokenizer.spellings", "tokenizer.json")
    return Manifest(
        corpus=corpus.name,
        corpus_revision=corpus.revision,
        licence=corpus.licence,
        citation="",
        tokenizer=tokenizer.name,
        tokenizer_revision=tokenizer.revision,
        vocabulary=tokenizer.vocabulary,
        end_of_document=tokenizer.end_of_document,
        splits=splits,
        files={
            name: file_record(folder / name)
            for name in sorted([*names, *kept])
            if (folder / name).is_file()
        },
        ranges=ranges_of(corpus),
    )


def _check(tokens: Tokens, tokenizer: Tokenizer, where: str) -> None:
    for start in range(0, len(tokens), BLOCK):
        block = tokens[start : start + BLOCK]
        wrong = np.flatnonzero((block < 0) | (block >= tokenizer.vocabulary))
        if len(wrong):
            raise UsageError(
                f"{where} holds token {block[wrong[0]]} at place {start + wrong[0]}; tokenizer "
                f"{tokenizer.name} has {tokenizer.vocabulary}: give the one that made the files, "
                "and the type of their tokens"
            )


def _documents(tokens: Tokens, end: int) -> np.ndarray:
    """Offsets of documents that are closed by `end`; what follows the last one is one as well.

    An `end` right behind another, or at the start (llm.c writes it before each document), closes
    nothing and goes with what follows it.
    """
    found = [
        start + 1 + np.flatnonzero(tokens[start : start + BLOCK] == end)
        for start in range(0, len(tokens), BLOCK)
    ]
    ends = np.unique(np.concatenate([*found, [len(tokens)]])).astype(np.int64)
    closes = np.diff(ends, prepend=0) > 1
    if not closes[-1]:
        closes[np.flatnonzero(closes)[-1:]] = False  # the last document takes it in
        closes[-1] = True
    return np.concatenate([[0], ends[closes]])


def _records(
    split: str, tokens: Tokens, offsets: np.ndarray, tokenizer: Tokenizer
) -> Iterator[DocumentRecord]:
    end = tokenizer.end_of_document
    for index in range(len(offsets) - 1):
        first, last = without_ends(tokens, int(offsets[index]), int(offsets[index + 1]), end)
        digest, size = sha256(), 0
        for start in range(first, last, BLOCK):
            block = tokens[start : min(start + BLOCK, last)].tolist()
            text = b"".join([tokenizer.spellings[token] for token in block])
            digest.update(text)
            size += len(text)
        yield DocumentRecord(
            name=f"{split}:{index + 1}",
            stratum="",
            bytes=size,
            tokens=last - first,
            sha256=digest.hexdigest(),
        )
