"""The Python standard library's source: code, on every machine that can run this.

Tests, installed packages and generated tables are left out. The text is that of the interpreter at
hand, so the revision holds the hash of the text beside the version of Python.
"""

import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from arch_search.data.corpora.base import Corpus, Document
from arch_search.data.corpora.files import FileSet, settle
from arch_search.data.corpora.splitting import Candidate, split_by_document
from arch_search.errors import UsageError

LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
LONG_BYTES, LONG_DOCUMENTS = 85_000, 3


def _folder() -> Path:
    return Path(sysconfig.get_path("stdlib"))


@cache
def _files() -> FileSet:
    folder = _folder()
    paths = sorted(
        path
        for path in folder.rglob("*.py")
        if not LEFT_OUT & set(path.relative_to(folder).parts) and path.stat().st_size
    )
    if not paths:
        raise UsageError(
            f"the corpus 'stdlib' is not here: {folder} holds no Python source; use an "
            "interpreter that comes with its library's source"
        )
    names = [path.relative_to(folder).as_posix() for path in paths]
    return settle([(path, None) for path in paths], names)


def read_documents() -> Iterator[Document]:
    """Every module in the order of its path, those that are not UTF-8 left out."""
    texts = {}
    for path, _ in _files().sources:
        text = path.read_bytes()
        try:
            text.decode()
        except UnicodeDecodeError:
            continue
        texts[path.relative_to(_folder()).as_posix()] = text
    candidates = [
        Candidate(name=name, stratum=name.partition("/")[0], size=len(text))
        for name, text in texts.items()
    ]
    splits = split_by_document(candidates, long_size=LONG_BYTES, long_documents=LONG_DOCUMENTS)
    for name, text in texts.items():
        yield Document(name=name, text=text, split=splits[name], stratum=name.partition("/")[0])


def stdlib() -> Corpus:
    """The corpus of the interpreter that runs."""
    files = _files()
    version = ".".join(map(str, sys.version_info[:3]))
    return Corpus(
        name="stdlib",
        summary="source of the Python standard library that runs this, tests left out",
        licence="PSF-2.0",
        citation="Python Software Foundation, https://www.python.org",
        revision=f"{version}/{files.revision}",
        documents=read_documents,
        size=files.size,
    )
