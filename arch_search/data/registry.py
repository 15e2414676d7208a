"""Looking a corpus or a tokenizer up by its name, importing nothing before it is asked for."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from arch_search.errors import UsageError
from blocks.options import did_you_mean


def lookup(registry: Mapping[str, str], name: str, *, what: str) -> Any:
    """The object that `registry` names as "module:ATTRIBUTE".

    Raises:
        UsageError: nothing of that name; lists the names and gives the nearest one.
    """
    if name not in registry:
        registered = ", ".join(sorted(registry))
        raise UsageError(
            f"unknown {what} {name!r}; registered: {registered}.{did_you_mean(name, registry)}"
        )
    module, _, attribute = registry[name].partition(":")
    return getattr(import_module(module), attribute)
