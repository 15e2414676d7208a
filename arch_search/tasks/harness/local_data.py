"""Data sets of lm-eval's tasks from a folder, and what is absent said at once.

lm-eval reads every data set through `datasets.load_dataset`. That one function is exchanged while
tasks are loaded, since tasks written in Python have no setting for where their data are. Without
`download`, nothing is fetched, and no time goes into a network that is not there: some tasks ask
nltk for its data, too, as soon as they are imported.
"""

import contextlib
import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets

FORMATS = ("json", "csv", "parquet", "text", "arrow")  # that `datasets` builds from given files


class DataAbsent(Exception):  # noqa: N818
    """A data set is neither in the folder nor may it be downloaded."""


@contextlib.contextmanager
def local_data(
    folder: Path | None, beside: Sequence[Path], *, cache: Path, download: bool
) -> Iterator[None]:
    """While it lasts, data sets come from `folder`/<owner>/<name>, a copy of the hub's repository.

    Args:
        beside: folders of task files; `data_files` that are relative are looked for in them, too.
        cache: where `datasets` keeps what it converts.
        download: ask the hub for what is not there.
    Raises (inside):
        DataAbsent: it is not there.
    """
    real = datasets.load_dataset

    def load(path: str, name: str | None = None, **options: Any) -> Any:
        options.setdefault("cache_dir", str(cache))
        if path in FORMATS:
            if "data_files" in options:
                options["data_files"] = _placed(options["data_files"], beside)
            return real(path, name, **options)
        found = folder / path if folder is not None else None
        if found is not None and found.is_dir():
            return real(*_local(found, name), **options)
        if Path(path).is_dir() or download:
            return real(path, name, **options)
        where = f"not in {folder}" if folder is not None else "absent: no folder `data` is given"
        raise DataAbsent(f"data set {path} is {where}, and download is off")

    datasets.load_dataset = load
    try:
        with contextlib.nullcontext() if download else _nltk_offline():
            yield
    finally:
        datasets.load_dataset = real


@contextlib.contextmanager
def _nltk_offline() -> Iterator[None]:
    """What asks nltk to download goes on without; who needs the data then misses them by name."""
    if importlib.util.find_spec("nltk") is None:
        yield
        return
    nltk: Any = importlib.import_module("nltk")
    real, nltk.download = nltk.download, lambda *names, **options: False
    try:
        yield
    finally:
        nltk.download = real


def _local(folder: Path, name: str | None) -> tuple[str, str | None]:
    """A copy's own configurations if its README lists them, else a folder of that name in it."""
    if name is not None and not (folder / "README.md").is_file():
        return str(folder / name if (folder / name).is_dir() else folder), None
    return str(folder), name


def _placed(files: Any, beside: Sequence[Path]) -> Any:
    if isinstance(files, dict):
        return {split: _placed(value, beside) for split, value in files.items()}
    if isinstance(files, list):
        return [_placed(value, beside) for value in files]
    found = [
        path for path in (Path(files), *(folder / files for folder in beside)) if path.exists()
    ]
    if not found and not any(mark in str(files) for mark in "*?["):
        looked = ", ".join(str(folder) for folder in (Path.cwd(), *beside))
        raise DataAbsent(f"file {files} is not in {looked}")
    return str(found[0].absolute()) if found else str(files)
