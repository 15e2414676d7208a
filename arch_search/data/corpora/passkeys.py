"""Passkeys hidden in noise, a document each: text from which a small model can learn to recall.

To be mixed with a corpus of text. The format is that of the evaluation `passkey`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from arch_search.data.corpora.base import Corpus, Document, checked_name
from arch_search.data.corpora.options import read
from arch_search.data.corpora.splitting import ONE_IN, held_out
from arch_search.errors import UsageError
from arch_search.spec import content_hash
from blocks.options import option

BLOCK = 1_000  # documents made at once


@dataclass(frozen=True, kw_only=True, slots=True)
class PasskeyOptions:
    """Options of `passkeys:`."""

    passkeys: int = option(0, "how many documents")
    shortest: int = option(128, "tokens (bytes) of the shortest one")
    longest: int = option(1_024, "tokens (bytes) of the longest one")
    task: dict = option(None, "options of the task passkey, as in {digits: 2, noise: 'grass. '}")
    questions: int = option(
        1, "up to so many in a document, each answered, at random places behind the passkey"
    )
    name: str = option("passkeys", "name in tables and folders")

    def __post_init__(self) -> None:
        if self.passkeys < ONE_IN or not 0 < self.shortest <= self.longest:
            raise UsageError(
                f"passkeys: {self.passkeys} documents of {self.shortest} to {self.longest} tokens; "
                f"expected {ONE_IN} or more, of ascending lengths"
            )
        if self.questions < 1:
            raise UsageError(f"passkeys.questions is {self.questions}; expected 1 or more")


def passkeys(mapping: Mapping[str, Any]) -> Corpus:
    """Documents of lengths uniform between the two, the passkey at a random depth in each.

    Raises:
        UsageError: options that are wrong, or have no room for a passkey.
    """
    from arch_search.synthetic.registry import read_task  # torch, for who makes them alone

    options: PasskeyOptions = read(PasskeyOptions, mapping, "passkeys")
    _, task = read_task({"passkey": options.task or {}})
    try:
        _texts(options, task, 0, 1, options.shortest)
    except ValueError as error:
        raise UsageError(f"passkeys.shortest: {error}") from None
    return Corpus(
        name=checked_name(options.name),
        summary=f"{options.passkeys:,} passkeys in noise, {options.shortest} to {options.longest}",
        licence="made here; CC0-1.0",
        citation="arXiv 2410.07145 (format)",
        revision=f"1/{content_hash([_decisive(options), asdict(task)])}",
        documents=lambda: _documents(options, task),
        size=options.passkeys * (options.shortest + options.longest) // 2,
    )


def _documents(options: PasskeyOptions, task: Any) -> Iterator[Document]:
    for first in range(0, options.passkeys, BLOCK):
        last = min(first + BLOCK, options.passkeys)
        for number, text in enumerate(_texts(options, task, first, last), start=first):
            name = f"{number:07d}"
            yield Document(
                name=name, text=text, split=held_out(number, options.name), stratum=options.name
            )


def _decisive(options: PasskeyOptions) -> dict[str, Any]:
    """What the documents depend on: one question, as before there could be several, is unsaid."""
    given = asdict(options)
    return given if options.questions > 1 else {k: given[k] for k in given if k != "questions"}


def _texts(
    options: PasskeyOptions, task: Any, first: int, last: int, longest: int | None = None
) -> list[bytes]:
    """Documents `first` to `last`, each drawn from its number alone."""
    from arch_search.synthetic.draws import Draws

    spread = (longest or options.longest) - options.shortest + 1
    lengths = options.shortest + Draws(np.arange(first, last), "passkeys", "length").integers(
        spread
    )
    return [
        _text(options, task, number, length).encode()
        for number, length in zip(range(first, last), lengths.tolist(), strict=True)
    ]


def _text(options: PasskeyOptions, task: Any, number: int, length: int) -> str:
    """One document of at most `length` tokens; further questions take the place of noise."""
    from arch_search.data.tokenizers.byte_level import BYTES
    from arch_search.synthetic.draws import Draws
    from arch_search.synthetic.passkey import Passkey

    asked = len(f"{task.end} ".encode()) + task.digits
    noise = (Passkey().blocks(length, task, BYTES) - 1) * len(task.noise.encode())
    draws = Draws(np.array([number]), "passkeys", "questions")
    again = int(draws.integers(min(options.questions - 1, noise // asked) + 1)[0])
    own = Draws(np.array([number]), "passkeys", "text")
    [item] = Passkey().items(own, length - again * asked, task, BYTES, list)
    needle = task.needle.replace("{p}", item.answers[0])
    before, _, after = item.prompt.partition(needle)
    blocks = after.removesuffix(task.end).count(task.noise)
    places = sorted(draws.integers(blocks + 1, again)[0].tolist())
    text, at = f"{before}{needle}", 0
    for place in [*places, blocks]:
        text += f"{task.noise * (place - at)}{task.end}{item.said}"
        at = place
    return text
