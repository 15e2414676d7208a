"""Options of blocks: typed, JSON-able, each with a help text, read strictly from a mapping."""

import dataclasses
import difflib
import functools
import math
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

OF_FLA = "fla:"  # begins the kind of a block that is a layer of flash-linear-attention


def option(default: Any, help: str) -> Any:
    """A field of an Options dataclass, with the text that `arch-search blocks` shows."""
    return dataclasses.field(default=default, metadata={"help": help})


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' Did you mean …?' for the nearest of `known`, or nothing if none is near."""
    near = nearest_name(word, known)
    return f" Did you mean {near!r}?" if near else ""


def nearest_name(word: str, known: Iterable[str]) -> str:
    """The one of `known` that was probably meant; empty if none is near."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)), "")


@functools.cache
def option_types(cls: type) -> dict[str, Any]:
    """The annotated types of an Options dataclass, by name."""
    return get_type_hints(cls)


def read_options(cls: type, mapping: Mapping[str, Any], *, owner: str) -> Any:
    """An instance of the Options dataclass `cls` from plain values.

    Raises:
        ValueError: a key that `cls` lacks, or a value of the wrong type; names the nearest key or
            the values allowed.
    """
    hints = option_types(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    for key in mapping:
        if key not in names:
            raise ValueError(
                f"unknown option {key!r} of {owner}; it has: {', '.join(names)}."
                f"{did_you_mean(str(key), names)}"
            )
    values = {
        key: _read_value(value, hints[key], f"option {key!r} of {owner}")
        for key, value in mapping.items()
    }
    return cls(**values)


def _read_value(value: Any, hint: Any, what: str) -> Any:
    """`value` as the annotated type; ints pass as floats, lists as tuples."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        hints = [arg for arg in args if arg is not type(None)]
        if len(hints) > 1 and not isinstance(value, tuple(hints)):
            names = " or ".join(hint.__name__ for hint in hints)
            raise ValueError(f"{what} is {value!r}; expected {names}")
        return value if len(hints) > 1 else _read_value(value, hints[0], what)
    if origin is Literal:
        if value not in args or isinstance(value, bool) != isinstance(args[0], bool):
            allowed = ", ".join(map(str, args))
            near = did_you_mean(str(value), map(str, args))
            raise ValueError(f"{what} is {value!r}; expected one of {allowed}.{near}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple) or len(value) != len(args):
            raise ValueError(f"{what} is {value!r}; expected {len(args)} values in a list")
        return tuple(_read_value(v, arg, what) for v, arg in zip(value, args, strict=True))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ValueError(f"{what} is {value!r}; expected {hint.__name__}")
    return value


def require_positive(options: Any, *names: str) -> None:
    """Raises ValueError if a named option is set and not above zero."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value <= 0:
            raise ValueError(f"{name} is {value}; expected a number above 0")


def require_not_negative(options: Any, *names: str) -> None:
    """Raises ValueError if a named option is below zero."""
    for name in names:
        if getattr(options, name) < 0:
            raise ValueError(f"{name} is {getattr(options, name)}; expected 0 or more")


def require_range(options: Any, *names: str, least: float = -math.inf) -> None:
    """Raises ValueError if a named (low, high) is set and not in order, or starts below `least`."""
    for name in names:
        value = getattr(options, name)
        if value is not None and not least <= value[0] <= value[1] < math.inf:
            floor = "" if least == -math.inf else f", low at least {least:g}"
            raise ValueError(f"{name} is {list(value)}; expected [low, high] in order{floor}")
