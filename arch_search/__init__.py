"""Controlled ablations and searches over sequence-model architectures.

`plan`, `submit`, `evaluate` and `results` are the command line's verbs for Python. They load when
first used, so that importing a part of the package never imports all of it.
"""

from typing import Any

__all__ = ["evaluate", "plan", "results", "submit"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from arch_search import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
