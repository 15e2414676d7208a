"""Small programs as text, to be executed: assignments and sums, then a variable's value."""

from dataclasses import dataclass

from arch_search.data.tokenizers import Tokenizer
from arch_search.synthetic.draws import Draws
from arch_search.synthetic.text import Haystack, TextItem, TextTask, token_ids
from blocks.options import option

NAMES = "abcdefgh"
SHORTEST = 4  # bytes of a line


class Programs(TextTask):
    """Lines such as a=b+3, over the integers modulo m, each variable set before it is read."""

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Options:
        variables: int = option(3, f"how many there are, up to {len(NAMES)}")
        modulus: int = option(10, "m, at most 10, so that a value is a digit")
        lines: int = option(0, "at most so many after the first values; 0: as many as fit")

        def __post_init__(self) -> None:
            if not 1 <= self.variables <= len(NAMES) or not 2 <= self.modulus <= 10:
                raise ValueError(
                    f"variables {self.variables}, modulus {self.modulus}; expected 1 to "
                    f"{len(NAMES)}, and 2 to 10"
                )

    def chance(self, options: Options, length: int) -> float:
        """One of all values."""
        return 1 / options.modulus

    def items(
        self, draws: Draws, length: int, options: Options, tokenizer: Tokenizer, haystack: Haystack
    ) -> list[TextItem]:
        n, m = options.variables, options.modulus
        starts = draws.integers(m, n)
        words = draws.words(length // SHORTEST + 1, 4)
        asked = draws.integers(n)
        found = []
        for row in range(len(draws)):
            name = NAMES[asked[row]]
            values = starts[row].tolist()
            lines = [f"{NAMES[i]}={value}\n" for i, value in enumerate(values)]
            question = f"print({name})\n>"
            used = 2 + len(token_ids(tokenizer, "".join(lines) + question))
            if used > length:
                raise ValueError(f"{length} tokens have no room for {n} variables; give {used}")
            done = 0
            for word in words[row].tolist():
                line, to, value = _line(word, values, m)
                used += len(token_ids(tokenizer, line))
                if used > length or (options.lines and done == options.lines):
                    break
                values[to] = value
                lines.append(line)
                done += 1
            answer = str(values[asked[row]])
            found.append(
                TextItem(
                    prompt="".join(lines) + question,
                    said=answer,
                    answers=(answer,),
                    about={"lines": done},
                )
            )
        return found


def _line(word: list[int], values: list[int], modulus: int) -> tuple[str, int, int]:
    """One assignment: its text, the variable it sets, and to what."""
    n = len(values)
    to, one, other, kind = word[0] % n, word[1] % n, word[2], word[3] % 4
    if kind == 0:
        return f"{NAMES[to]}={other % modulus}\n", to, other % modulus
    if kind == 1:
        return f"{NAMES[to]}={NAMES[one]}\n", to, values[one]
    second = other % n if kind == 2 else None
    add = values[second] if second is not None else other % modulus
    text = NAMES[second] if second is not None else str(add)
    return f"{NAMES[to]}={NAMES[one]}+{text}\n", to, (values[one] + add) % modulus
