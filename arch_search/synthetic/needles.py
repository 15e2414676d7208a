"""RULER's needle tasks (arXiv 2404.06654): in its English form, and in one that tiny models learn.

kind | haystack | keys | values a key | asked
S1   | the grass is green | 1 | 1 number | 1        MK | sentences | 4 | 1 number | 1
S2   | sentences          | 1 | 1 number | 1        MV | sentences | 1 | 4 numbers | 1
S3   | sentences          | 1 | 1 UUID   | 1        MQ | sentences | 4 | 1 number | 4

English keys are an adjective and a noun of the package wonderwords; numbers have seven digits.
Small: keys are two letters, values `digits` digits, the haystack letters or, in S1, dots.
"""

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal
from uuid import UUID

import numpy as np

from arch_search.data.tokenizers import Tokenizer
from arch_search.errors import UsageError
from arch_search.synthetic.draws import Draws
from arch_search.synthetic.haystacks import GRASS
from arch_search.synthetic.text import Haystack, TextItem, TextTask, largest, token_ids
from blocks.options import option, require_positive

Kind = Literal["S1", "S2", "S3", "MK", "MQ", "MV"]
DEPTHS = 40  # equally spaced, 0 to 100 %, of which needles take different ones
LETTERS = "abcdefghijklmnopqrstuvwxyz"
LETTERS_IN_ALL = 1 << 18  # of the small haystack


class Needles(TextTask):
    """Facts hidden in text; the question names keys, the answer is their values."""

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Options:
        kind: Kind = option("S2", "S1, S2, S3, MK, MQ or MV")
        form: Literal["english", "small"] = option("english", "RULER's text, or a few bytes each")
        digits: int = option(3, "of a value in the small form; twice as many in S3")
        several: int = option(4, "keys of MK and MQ, values of MV")

        def __post_init__(self) -> None:
            require_positive(self, "digits", "several")
            if self.several > DEPTHS:
                raise ValueError(f"several is {self.several}; at most {DEPTHS} needles fit")

    def chance(self, options: Options, length: int) -> float:
        """Nothing can be guessed, but for the small form's digits: by answers, 10^-digits."""
        return 10.0**-options.digits if options.form == "small" else 0.0

    def items(
        self, draws: Draws, length: int, options: Options, tokenizer: Tokenizer, haystack: Haystack
    ) -> list[TextItem]:
        form = _English(haystack) if options.form == "english" else _Small(options)
        kind, n = options.kind, options.several
        keys = draws.words(n)
        values = draws.words(n, 2)
        asked = draws.choices(n, n)
        depths = np.sort(draws.choices(DEPTHS, n)[:, : n if kind in ("MK", "MQ", "MV") else 1])
        begins = draws.uniform()
        found = []
        for row in range(len(draws)):
            names = _different(form, keys[row].tolist(), n if kind in ("MK", "MQ") else 1)
            facts = [form.value(kind, *map(int, pair)) for pair in values[row]]
            pairs = [(names[i % len(names)], facts[i]) for i in range(depths.shape[1])]
            wanted = [names[i] for i in asked[row] if i < len(names)]
            wanted = wanted if kind == "MQ" else wanted[:1]
            answers = [value for name in wanted for key, value in pairs if key == name]
            prompt = _fitted(
                form, kind, pairs, wanted, answers, depths[row], float(begins[row]), length,
                tokenizer,
            )  # fmt: skip
            depth = float(np.mean([d for (k, _), d in zip(pairs, depths[row], strict=True)
                                   if k in wanted])) / (DEPTHS - 1)  # fmt: skip
            found.append(
                TextItem(
                    prompt=prompt,
                    said=form.said(answers),
                    answers=tuple(answers),
                    about={"depth": depth},
                )
            )
        return found


class _English:
    """RULER's sentences."""

    def __init__(self, haystack: Haystack) -> None:
        self.haystack = haystack

    def key(self, word: int) -> str:
        adjectives, nouns = _word_lists()
        return f"{adjectives[word % len(adjectives)]}-{nouns[(word >> 32) % len(nouns)]}"

    def value(self, kind: Kind, one: int, other: int) -> str:
        if kind == "S3":
            return str(UUID(int=(one << 64) | other, version=4))
        return str(1_000_000 + one % 9_000_000)

    def needle(self, key: str, value: str, what: str) -> str:
        return f"One of the special magic {what}s for {key} is: {value}."

    def line(self, kind: Kind, place: int) -> str:
        if kind == "S1":
            return GRASS
        sentences = self.haystack()
        return sentences[place % len(sentences)]

    def places(self, kind: Kind) -> int:
        return 1 if kind == "S1" else len(self.haystack())

    def prompt(self, kind: Kind, lines: list[str], wanted: list[str], several: bool) -> str:
        what = self.what(kind)
        text = ("\n" if kind == "S1" else " ").join(lines)
        query = wanted[0] if len(wanted) == 1 else f"{', '.join(wanted[:-1])}, and {wanted[-1]}"
        if several:
            head = f"Some special magic {what}s are hidden within the following text. "
            ask = f"What are all the special magic {what}s for {query} mentioned in the provided "
            begin = f"The special magic {what}s for {query} mentioned in the provided text are"
        else:
            head = f"A special magic {what} is hidden within the following text. "
            ask = f"What is the special magic {what} for {query} mentioned in the provided "
            begin = f"The special magic {what} for {query} mentioned in the provided text is"
        quiz = f"{what}s" if several else what
        head += f"Make sure to memorize it. I will quiz you about the {quiz} afterwards."
        return f"{head}\n{text}\n{ask}text? {begin}"

    def what(self, kind: Kind) -> str:
        return "uuid" if kind == "S3" else "number"

    def said(self, answers: list[str]) -> str:
        return " " + ", ".join(answers) + "."


class _Small:
    """'#ab=123;' among letters; '?ab=' asks, '123;' answers."""

    def __init__(self, options: Needles.Options) -> None:
        self.digits = options.digits

    def key(self, word: int) -> str:
        return LETTERS[word % 26] + LETTERS[(word >> 32) % 26]

    def value(self, kind: Kind, one: int, other: int) -> str:
        digits = self.digits * (2 if kind == "S3" else 1)
        return f"{one % 10**digits:0{digits}d}"

    def needle(self, key: str, value: str, what: str) -> str:
        return f"#{key}={value};"

    def line(self, kind: Kind, place: int) -> str:
        return "." if kind == "S1" else _letters()[place % LETTERS_IN_ALL]

    def places(self, kind: Kind) -> int:
        return LETTERS_IN_ALL

    def prompt(self, kind: Kind, lines: list[str], wanted: list[str], several: bool) -> str:
        return f"{''.join(lines)}?{','.join(wanted)}="

    def what(self, kind: Kind) -> str:
        return ""

    def said(self, answers: list[str]) -> str:
        return ",".join(answers) + ";"


def _different(form: _English | _Small, words: list[int], count: int) -> list[str]:
    """`count` different keys, of these words and, where two agree, of the numbers after them."""
    names: list[str] = []
    for word in words[:count]:
        while (name := form.key(word)) in names:
            word += 1
        names.append(name)
    return names


def _fitted(
    form: _English | _Small,
    kind: Kind,
    pairs: list[tuple[str, str]],
    wanted: list[str],
    answers: list[str],
    depths: np.ndarray,
    begin: float,
    length: int,
    tokenizer: Tokenizer,
) -> str:
    """The prompt with as much haystack as `length` has room for.

    Raises:
        ValueError: the needles alone do not fit.
    """
    start = int(begin * form.places(kind))
    needles = [form.needle(key, value, form.what(kind)) for key, value in pairs]

    def prompt(count: int) -> str:
        lines = [form.line(kind, start + i) for i in range(count)]
        places = (depths * count / (DEPTHS - 1)).astype(int).tolist()
        for place, needle in sorted(zip(places, needles, strict=True), reverse=True):
            lines.insert(place, needle)
        return form.prompt(kind, lines, wanted, len(answers) > 1)

    def size(count: int) -> int:
        return 1 + len(token_ids(tokenizer, prompt(count) + form.said(answers)))

    count = largest(length, lambda n: size(n) <= length)
    if count < 0:
        raise ValueError(
            f"{length} tokens have no room for the {len(needles)} needles and their question; "
            f"they take {size(0)}"
        )
    return prompt(count)


@cache
def _letters() -> str:
    drawn = Draws(np.zeros(1), "letters").integers(len(LETTERS), LETTERS_IN_ALL)[0]
    return "".join(LETTERS[i] for i in drawn)


@cache
def _word_lists() -> tuple[list[str], list[str]]:
    spec = find_spec("wonderwords")
    if spec is None or spec.origin is None:
        raise UsageError(
            "needles in English take their keys from the package wonderwords; run: pip install "
            "'wonderwords>=3,<4', or use form: small"
        )
    folder = Path(spec.origin).parent / "assets"
    names = ("adjectivelist.txt", "nounlist.txt")
    adjectives, nouns = ((folder / name).read_text().split("\n") for name in names)
    return [w for w in adjectives if w], [w for w in nouns if w]
