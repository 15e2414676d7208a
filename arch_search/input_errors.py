"""What is wrong with what a person wrote, in words and with the line where it stands."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from arch_search.errors import UsageError

EXPECTED = {  # by pydantic's kind of problem; the others say it well themselves
    "dataclass_type": "a mapping of keys",
    "dict_type": "a mapping of keys",
    "tuple_type": "a list",
    "string_type": "a text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number",
    "too_short": "a list of at least {min_length}",
    "float_type": "a number",
    "float_parsing": "a number",
}
KEYS = (  # at the beginning of a message: a name in a key may hold spaces where ':' follows
    re.compile(r"(?:unknown key )?'?([A-Za-z_]\w*(?:\.[\w/ =-]*\w)*)(?=[:'])"),
    re.compile(r"([A-Za-z_]\w*(?:\.[\w/-]*\w|\[\d+\])*)[ :]"),
)


def said(problem: Any, others: Sequence[Any] = ()) -> str:
    """What was expected and what came.

    Args:
        others: problems of the same value, where it may be one of several kinds.
    """
    kinds = [
        EXPECTED.get(one["type"], "").format(**one.get("ctx", {})) for one in (problem, *others)
    ]
    if all(kinds):
        message = f"expected {' or '.join(dict.fromkeys(kinds))}"
    else:
        message = problem["msg"].removeprefix("Value error, ")
        message = f"{message[0].lower()}{message[1:]}".replace("input should be", "expected")
    return f"{message} (got {problem['input']!r})"


def worst(error: ValidationError) -> tuple[Any, list[Any]]:
    """The problem to tell of, and others of the same value.

    Unknown keys come first, as they explain the rest; then what lies deepest: of a value that may
    be of several kinds, that is the kind which was meant.
    """
    problems: list[Any] = list(error.errors(include_url=False))
    first = min(
        problems,
        key=lambda one: (one["type"] != "unexpected_keyword_argument", -len(one["loc"])),
    )
    where = first["loc"][:-1]
    others = [
        one for one in problems
        if one is not first and one["loc"][:-1] == where and one["input"] is first["input"]
    ]  # fmt: skip
    return first, others


@contextmanager
def naming_lines(path: Path, overrides: Sequence[str] = ()) -> Iterator[None]:
    """Errors that begin with a file's name and one of its keys also say the line of that key."""
    try:
        yield
    except UsageError as error:
        where, text = f"{path}: ", str(error)
        rest = text.removeprefix(where)
        keys = [found[1] for form in KEYS if (found := form.match(rest)) and rest != text]
        lines = [line for key in keys if (line := _line(path, key, overrides))]
        if not lines:
            raise
        raise UsageError(f"{path}, line {lines[0]}: {rest}") from None


def _line(path: Path, key: str, overrides: Sequence[str]) -> int | None:
    """The line of a dotted key; None if it is not written in the file, or overridden."""
    parts = key.replace("[", ".").replace("]", "").split(".")
    given = [override.partition("=")[0].split(".") for override in overrides]
    if any(parts[: len(one)] == one[: len(parts)] for one in given):
        return None
    root = yaml.compose(path.read_text(), Loader=yaml.SafeLoader)
    chosen = [override.partition("=")[2] for override in overrides if override.startswith("scale=")]
    at_scale = _found(root, ["scales", chosen[-1], *parts]) if chosen else None
    return at_scale or _found(root, parts)


def _found(node: yaml.Node | None, parts: Sequence[str]) -> int | None:
    """The line at which a path ends. A number is passed over where no list was written."""
    line = None
    for part in parts:
        if isinstance(node, yaml.SequenceNode) and part.isdigit():
            node = node.value[int(part)] if int(part) < len(node.value) else None
        elif isinstance(node, yaml.SequenceNode):  # of mappings, as `evaluate` is
            pairs = [pair for item in node.value if isinstance(item, yaml.MappingNode)
                     for pair in item.value]  # fmt: skip
            line, node = _under(pairs, part)
        elif isinstance(node, yaml.MappingNode):
            if not part.isdigit():
                line, node = _under(node.value, part)
        elif not part.isdigit():
            return None
        if node is None:
            return None
    return line


def _under(pairs: Sequence[tuple[yaml.Node, yaml.Node]], key: str) -> tuple[Any, Any]:
    """The line of a key, and what stands under it."""
    for name, value in pairs:
        if name.value == key:
            return name.start_mark.line + 1, value
    return None, None
