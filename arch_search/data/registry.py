"""Looking a corpus or a tokenizer up by its name, importing nothing before it is asked for."""

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any


def lookup(registry: Mapping[str, str], name: str, *, what: str) -> Any:
    """The object that `registry` names as "module:ATTRIBUTE".

    Raises:
        ValueError: nothing of that name; lists the names and gives the nearest one.
    """
    if name not in registry:
        nearest = get_close_matches(name, registry, n=1, cutoff=0.5)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        registered = ", ".join(sorted(registry))
        raise ValueError(f"unknown {what} {name!r}; registered: {registered}.{hint}")
    module, _, attribute = registry[name].partition(":")
    return getattr(import_module(module), attribute)
