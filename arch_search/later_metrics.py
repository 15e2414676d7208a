"""Names for what was evaluated apart from the experiment's file: each stands for one thing.

A metric keeps its name unless another evaluation of the experiment reports it with other options:
then those are added, as in 'val/bits_per_byte window:512', so that no comparison mixes the two.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from arch_search.run_settings import EvaluationSpec

Reported = tuple[EvaluationSpec, str]
"""An evaluation, and a metric that it reports."""


def later_names(own: Iterable[Reported], later: Iterable[Reported]) -> dict[tuple[str, str], str]:
    """The name of each later metric, by its evaluation's hash and the name it is reported by."""
    asked = list(later)
    reporting: dict[str, dict[str, EvaluationSpec]] = defaultdict(dict)
    for spec, metric in (*own, *asked):
        reporting[metric][spec.hash] = spec
    return {
        (spec.hash, metric): " ".join([metric, *_apart(spec, reporting[metric].values())])
        for spec, metric in asked
    }


def _apart(spec: EvaluationSpec, reporting: Iterable[EvaluationSpec]) -> list[str]:
    """In what an evaluation differs from the others that report the same metric."""
    others = [other for other in reporting if other.hash != spec.hash]
    task = [spec.task] if any(other.task != spec.task for other in others) else []
    return task + [
        f"{key}:{_plain(value)}"
        for key, value in sorted(spec.options.items())
        if any(other.options.get(key) != value for other in others)
    ]


def _plain(value: Any) -> str:
    parts = map(str, value) if isinstance(value, list | tuple) else [str(value)]
    return "+".join(parts).replace("/", "_")
