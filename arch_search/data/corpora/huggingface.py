"""Datasets of the Hugging Face hub, or of a folder in its layout, streamed at a pinned revision.

Data files only: `datasets` from version 4 on runs no script of a dataset, and nothing here could
ask it to. A name on the hub may come to mean another text, so the commit is part of the identity
and has to be given.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from arch_search.data.corpora.base import UNSTATED, Corpus, SplitName, name_from
from arch_search.data.corpora.files import check_split_names, settle
from arch_search.data.corpora.jsonl import encoded
from arch_search.data.corpora.options import TextOptions, read
from arch_search.data.corpora.text import Text, text_corpus
from arch_search.errors import UsageError
from arch_search.extras import how_to_install
from blocks.options import did_you_mean, option

DATA_FILES = (".parquet", ".arrow", ".jsonl", ".json", ".csv", ".txt", ".gz", ".zst")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, kw_only=True, slots=True)
class HuggingFaceOptions(TextOptions):
    """Options of `huggingface:`."""

    huggingface: str = option("", "owner/name on the hub, or a folder in the same layout")
    config: str = option("", "the dataset's configuration, if it has several")
    revision: str = option("", "the commit on the hub, 40 hex digits")
    split: str | dict = option("train", "its split, or {train: …, val: …, test: …} of its splits")
    text: str = option("text", "the column that holds a document's text")
    documents: int = option(0, "take so many documents of each split; 0: all")


# The datasets that papers name, and what they need to be told; the commit is the user's to choose.
PRESETS: dict[str, dict[str, Any]] = {
    "wikitext": {
        "huggingface": "Salesforce/wikitext",
        "config": "wikitext-103-raw-v1",
        "split": {"train": "train", "val": "validation", "test": "test"},
        "licence": "CC-BY-SA-3.0 and GFDL",
    },
    "fineweb-edu": {
        "huggingface": "HuggingFaceFW/fineweb-edu",
        "config": "sample-10BT",
        "licence": "ODC-By-1.0; Common Crawl's terms of use",
    },
    "pg19": {
        "huggingface": "fla-hub/pg19",
        "split": {"train": "train", "val": "validation", "test": "test"},
        "licence": "Apache-2.0; books out of copyright in the US",
    },
    "nemotron-cc": {
        "huggingface": "nvidia/Nemotron-CC-v2",  # config: is the user's choice of its parts
        "licence": "NVIDIA Data Agreement for Model Training, to be accepted on the hub",
    },
}


def preset(mapping: Mapping[str, Any]) -> Corpus:
    """`{wikitext: <commit>, …}`: a dataset of `PRESETS` at a commit, options as of huggingface."""
    (kind,) = mapping.keys() & PRESETS.keys()
    rest = {key: value for key, value in mapping.items() if key != kind}
    return huggingface({**PRESETS[kind], "revision": mapping[kind], "name": kind, **rest})


def huggingface(mapping: Mapping[str, Any]) -> Corpus:
    """Documents as the hub streams them; nothing but the shards is kept.

    Raises:
        UsageError: no pinned commit, no such dataset, column or split, no package or network.
    """
    options: HuggingFaceOptions = read(HuggingFaceOptions, mapping, "huggingface")
    source = options.huggingface
    folder = Path(source).expanduser()
    revision = _local(folder) if folder.is_dir() else _pinned(source, options)
    splits: list[tuple[str, SplitName | None]] = [(str(options.split), None)]
    if isinstance(options.split, dict):
        check_split_names(options.split)
        splits = [(options.split[s], s) for s in get_args(SplitName) if s in options.split]
    chosen = f"{options.config}/{options.split}/{options.text}/{options.documents}"
    return text_corpus(
        lambda: _texts(options, splits),
        options,
        name=name_from(folder.name if folder.is_dir() else source.rpartition("/")[2]),
        summary=f"{source} {options.config}".strip(),
        licence=UNSTATED,
        citation=source if folder.is_dir() else f"https://huggingface.co/datasets/{source}",
        revision=f"huggingface/{revision}/{chosen}",
    )


def _local(folder: Path) -> str:
    paths = sorted(p for p in folder.rglob("*") if p.suffix in DATA_FILES and p.is_file())
    if not paths:
        raise UsageError(f"{folder.resolve()} holds no data file ({', '.join(DATA_FILES)})")
    names = [path.relative_to(folder).as_posix() for path in paths]
    return settle([(path, None) for path in paths], names).revision


def _pinned(source: str, options: HuggingFaceOptions) -> str:
    if not _REPOSITORY.fullmatch(source):
        raise UsageError(
            f"huggingface: {source!r} is neither a folder here nor owner/name on the hub"
        )
    if not _COMMIT.fullmatch(str(options.revision)):
        raise UsageError(
            f"{source} needs a commit, revision: (40 hex digits), got {options.revision!r}: a "
            "branch or tag may come to mean another text; the hub shows it under Files, History"
        )
    return f"{source}@{options.revision}"


def _texts(
    options: HuggingFaceOptions, splits: list[tuple[str, SplitName | None]]
) -> Iterator[Text]:
    for theirs, ours in splits:
        for number, row in enumerate(_rows(options, theirs), 1):
            if options.text not in row:
                raise UsageError(
                    f"{options.huggingface} has no column {options.text!r}; it has "
                    f"{', '.join(row)}.{did_you_mean(options.text, row)}"
                )
            where = f"{options.huggingface}, {theirs}, row {number}"
            yield Text(
                name=f"{theirs}:{number}", text=encoded(row[options.text], where), split=ours
            )
            if number == options.documents:
                break


def _rows(options: HuggingFaceOptions, split: str) -> Iterator[Mapping[str, Any]]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise UsageError(
            f"Hugging Face datasets need the package datasets; {how_to_install('data')}"
        ) from None
    folder = Path(options.huggingface).expanduser()
    # By its whole path, or a folder called "json" would be taken for a format of that name.
    source = str(folder.resolve()) if folder.is_dir() else options.huggingface
    try:
        yield from load_dataset(
            source,
            name=options.config or None,
            split=split,
            revision=options.revision or None,
            streaming=True,
        )
    except UsageError:
        raise
    except Exception as error:  # of many kinds: hub, network, file formats
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UsageError(f"{options.huggingface} cannot be read: {reason}") from None
