"""From texts in some order to documents in splits: cut, filtered, held out. In constant memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from arch_search.data.corpora.base import Corpus, Document, SplitName, checked_name
from arch_search.data.corpora.options import TextOptions
from arch_search.data.corpora.splitting import ONE_IN, held_out
from arch_search.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """A text as a source gives it; `split` if the source has splits of its own."""

    name: str
    text: bytes
    split: SplitName | None = None
    stratum: str = ""


def text_corpus(
    texts: Callable[[], Iterator[Text]],
    options: TextOptions,
    *,
    name: str,
    summary: str,
    licence: str,
    citation: str,
    revision: str,
    size: int | None = None,
) -> Corpus:
    """A corpus of these texts, as the options cut and filter them."""
    changes = (options.min_bytes, options.max_bytes, options.cut_every)
    suffix = "/bytes {}-{} cut {}".format(*changes) if any(changes) else ""
    name = checked_name(options.name or name)
    return Corpus(
        name=name,
        summary=summary,
        licence=options.licence or licence,
        citation=citation,
        revision=revision + suffix,
        documents=lambda: _documents(texts(), options, name),
        size=size,
    )


def _documents(texts: Iterator[Text], options: TextOptions, key: str) -> Iterator[Document]:
    kept, splits = 0, set()
    for text in _cut(texts, options.cut_every):
        length = len(text.text)
        too_long = options.max_bytes and length > options.max_bytes
        if length == 0 or length < options.min_bytes or too_long:
            continue
        split = text.split or held_out(kept, key)
        splits.add(split)
        kept += 1
        yield Document(name=text.name, text=text.text, split=split, stratum=text.stratum)
    if not kept:
        raise UsageError(
            f"corpus {key!r} has 0 documents: none is both within min_bytes and max_bytes and not "
            "empty"
        )
    if not {"train", "val"} <= splits:
        raise UsageError(
            f"corpus {key!r} has {kept} documents, too few to hold one in {ONE_IN} out for "
            "validation; give cut_every: (bytes), to cut long documents into several, or splits "
            "of your own: {train: path, val: path}"
        )


def _cut(texts: Iterator[Text], every: int) -> Iterator[Text]:
    for text in texts:
        if not every or len(text.text) <= every:
            yield text
            continue
        for index, piece in enumerate(pieces(text.text, every)):
            yield Text(
                name=f"{text.name}#{index}", text=piece, split=text.split, stratum=text.stratum
            )


def pieces(text: bytes, limit: int) -> Iterator[bytes]:
    """The text in pieces of at most `limit` bytes, cut behind a line's end where there is one.

    A line longer than `limit` is cut between characters; four bytes are always taken, so that no
    limit splits one.
    """
    start, limit = 0, max(limit, 4)
    while start < len(text):
        end = start + limit
        if end < len(text):
            line = text.rfind(b"\n", start, end) + 1
            while not line and text[end] & 0xC0 == 0x80:  # inside a character
                end -= 1
            end = line or end
        yield text[start:end]
        start = end
