"""Layer patterns: which block stands where, as a short string.

    pattern := item+            separated by spaces
    item    := (NAME | "(" pattern ")") ["*" COUNT]

`"m2rnn gdn*3 attn (gdn*7 attn)*2 gdn*3"` is 24 layers. Many strings name one list of layers; the
shortest is its canonical form. Only the registry knows what a name means.
"""

import re
from collections.abc import Sequence
from functools import cache

MAX_LAYERS = 256
_TOKEN = re.compile(r"(?:(?P<name>[A-Za-z_][\w.:]*)|(?P<mark>[()])|\*\s*(?P<count>-?\d+))")


def parse_pattern(text: str) -> tuple[str, ...]:
    """The names of the layers, first to last.

    Raises:
        ValueError: not a pattern; the message shows where it stops making sense.
    """
    groups: list[list[str]] = [[]]  # open parentheses, outermost first
    last: list[str] | None = None  # what a following *n repeats
    at = 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        match = _TOKEN.match(text, at)
        if match is None:
            raise _error(text, at, f"cannot read {text[at:].split()[0]!r} here")
        if name := match["name"]:
            last = [name]
            groups[-1] += last
        elif match["mark"] == "(":
            groups.append([])
            last = None
        elif match["mark"] == ")":
            if len(groups) == 1:
                raise _error(text, at, "')' closes nothing")
            if not groups[-1]:
                raise _error(text, at, "the parentheses are empty")
            last = groups.pop()
            groups[-1] += last
        else:
            if last is None:
                raise _error(text, at, "'*' must follow a block or a ')'")
            count = int(match["count"])
            if count < 1:
                raise _error(text, at, f"a block is repeated {count} times; it must be at least 1")
            if len(groups[-1]) + len(last) * (count - 1) > MAX_LAYERS:
                raise _error(text, at, f"the model would pass {MAX_LAYERS} layers")
            groups[-1] += last * (count - 1)
            last = None
        at = match.end()
    if len(groups) > 1:
        raise _error(text, len(text), "a '(' is never closed")
    if not groups[0]:
        raise ValueError("the layer pattern is empty; give at least one block, as in 'gdn*3 attn'")
    return tuple(groups[0])


def _error(text: str, at: int, what: str) -> ValueError:
    return ValueError(f"layer pattern {text!r}, character {at + 1}: {what}")


def format_pattern(names: Sequence[str]) -> str:
    """The shortest pattern for these layers (fewest characters, then fewest groups): canonical.

    `parse_pattern(format_pattern(names)) == tuple(names)`, and two equal lists print alike.
    """
    names = tuple(names)

    @cache
    def shortest(start: int, stop: int) -> str:
        if stop - start == 1:
            return names[start]
        candidates = [
            _repeat(shortest(start, start + period), (stop - start) // period)
            for period in range(1, (stop - start) // 2 + 1)
            if _has_period(names, start, stop, period)
        ]
        # A split at the end of a run loses nothing, and keeps this fast for long models.
        cuts = [i for i in range(start + 1, stop) if names[i] != names[i - 1]]
        candidates += [f"{shortest(start, i)} {shortest(i, stop)}" for i in cuts]
        return min(candidates, key=lambda text: (len(text), text.count("("), text))

    for length in range(1, len(names)):  # short pieces first: the recursion stays shallow
        for start in range(len(names) - length):
            shortest(start, start + length)
    return shortest(0, len(names))


def _has_period(names: tuple[str, ...], start: int, stop: int, period: int) -> bool:
    if (stop - start) % period:
        return False
    return names[start : stop - period] == names[start + period : stop]


def _repeat(body: str, count: int) -> str:
    simple = re.fullmatch(r"[\w.:]+", body) is not None
    return f"{body}*{count}" if simple else f"({body})*{count}"
