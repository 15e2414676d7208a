"""What a model is given to look at its states: newlines, or text, to any length."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from arch_search.data import Split, load_manifest, open_split, spellings_of
from arch_search.data.tokenizers import Recipe, find_tokenizer
from arch_search.errors import UsageError
from arch_search.stored_model import StoredModel


@dataclass(frozen=True, kw_only=True, slots=True)
class TextSource:
    """Where prompts come from.

    documents(i): the tokens of the i-th of `count` documents; `end` stands between documents.
    newline: the token that spells one newline; None if there is none.
    """

    count: int
    documents: Callable[[int], np.ndarray]
    end: int
    newline: int | None

    def newlines(self, length: int) -> np.ndarray:
        """(1, length + 1): the end-of-document token, then newlines.

        Raises:
            UsageError: no token spells a newline.
        """
        if self.newline is None:
            raise UsageError("no token of this tokenizer spells one newline; use --prompt text")
        tokens = np.full((1, length + 1), self.newline, dtype=np.int64)
        tokens[0, 0] = self.end
        return tokens

    def text(self, length: int, batch: int) -> np.ndarray:
        """(batch, length + 1): out of the middle of documents, long ones first, short ones joined.

        A document's beginning is easier to predict than its middle, which would look like a loss
        that grows with position.

        Raises:
            UsageError: there is too little text for one row.
        """
        sizes = [len(self.documents(i)) for i in range(self.count)]
        order = sorted(range(self.count), key=lambda i: -sizes[i])
        rows: list[np.ndarray] = []
        joined: list[np.ndarray] = []
        for i in order:
            joined += [np.array([self.end]), self.documents(i)]
            over = sum(map(len, joined)) - length - 1
            if over >= 0:
                rows.append(np.concatenate(joined)[over // 2 :][: length + 1])
                joined = []
            if len(rows) == batch:
                break
        if not rows:
            raise UsageError(
                f"the text has {sum(sizes):,} tokens, too few for {length:,}; look less far, or "
                "give more with --text"
            )
        return np.stack(rows).astype(np.int64)


def of_split(split: Split) -> TextSource:
    """The documents of prepared data."""
    spellings = spellings_of(split.manifest)
    newline = spellings.index(b"\n") if b"\n" in spellings else None
    return TextSource(
        count=split.documents,
        documents=split.document,
        end=split.manifest.end_of_document,
        newline=newline,
    )


def of_file(path: Path, tokenizer: str | Mapping[str, Any]) -> TextSource:
    """A text file as one document.

    Raises:
        UsageError: the file cannot be read, or the tokenizer would have to be trained first.
    """
    found = find_tokenizer(tokenizer)
    if isinstance(found, Recipe):
        raise UsageError(f"tokenizer {tokenizer!r} is trained on a corpus; name one that exists")
    try:
        body = found.encode(path.read_bytes()).astype(np.int64)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    newline = found.encode(b"\n")
    return TextSource(
        count=1,
        documents=lambda _: body,
        end=found.end_of_document,
        newline=int(newline[0]) if len(newline) == 1 else None,
    )


def of_model(stored: StoredModel, root: Path) -> TextSource:
    """The held-out text of a run's own corpus.

    Raises:
        UsageError: the model was not trained here on a corpus.
    """
    if stored.run is None or not stored.run.data.manifest:
        raise UsageError(
            f"{stored.name} was not trained on a corpus here; give --text FILE and --tokenizer"
        )
    return of_split(open_split(load_manifest(root, stored.run.data.manifest), "val"))
