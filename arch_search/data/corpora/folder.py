"""A folder of text files, one document a file."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from arch_search.data.corpora.base import UNSTATED, Corpus, SplitName, name_from
from arch_search.data.corpora.files import Source, checked_text, settle
from arch_search.data.corpora.options import TextOptions, read
from arch_search.data.corpora.text import Text, text_corpus
from arch_search.errors import UsageError
from blocks.options import did_you_mean, option


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderOptions(TextOptions):
    """Options of `folder:`."""

    folder: str = option("", "the folder; train/, val/ and test/ in it are splits")
    pattern: str = option("**/*.txt", "the files in it, as in '**/*.md'")


def folder(mapping: Mapping[str, Any]) -> Corpus:
    """The files of a folder, in the order of their paths.

    Raises:
        UsageError: no such folder, no such files, or one that leads out of the folder.
    """
    options: FolderOptions = read(FolderOptions, mapping, "folder")
    root = Path(options.folder).expanduser().resolve()
    paths = _paths(root, options.pattern)
    names = [path.relative_to(root).as_posix() for path in paths]
    own_splits = {"train", "val"} <= {name.partition("/")[0] for name in names}
    sources: list[Source] = [
        (path, _split(name) if own_splits else None)
        for path, name in zip(paths, names, strict=True)
    ]
    files = settle(sources, names)

    def texts() -> Iterator[Text]:
        for (path, split), name in zip(sources, names, strict=True):
            text = checked_text(path.read_bytes(), str(path))
            yield Text(name=name, text=text, split=split, stratum=name.rpartition("/")[0])

    return text_corpus(
        texts,
        options,
        name=name_from(root.name),
        summary=f"{len(paths)} files of {root}",
        licence=UNSTATED,
        citation="",
        revision=f"folder/{files.revision}",
        size=files.size,
    )


def _paths(root: Path, pattern: str) -> list[Path]:
    if not root.is_dir():
        near = did_you_mean(root.name, [p.name for p in root.parent.glob("*") if p.is_dir()])
        raise UsageError(f"no folder {root}.{near}" if not root.is_file() else f"{root} is a file")
    try:
        paths = sorted(path for path in root.glob(pattern) if path.is_file())
    except (ValueError, NotImplementedError) as error:
        raise UsageError(f"pattern {pattern!r} cannot be used: {error}") from None
    if not paths:
        kinds = sorted({path.suffix for path in root.rglob("*") if path.is_file()} - {""})[:8]
        raise UsageError(
            f"no file in {root} matches {pattern!r}; the files there end in "
            f"{', '.join(kinds) or 'nothing: it is empty'}"
        )
    for path in paths:
        if not path.resolve().is_relative_to(root):
            raise UsageError(
                f"{path} leads out of {root}, to {path.resolve()}; copy the file into the folder"
            )
    return paths


def _split(name: str) -> SplitName:
    top = name.partition("/")[0]
    for split in get_args(SplitName):
        if top == split:
            return split
    raise UsageError(f"{name} stands beside train/ and val/, in no split; move or remove it")
