"""The evaluations by name: one line each."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter, ValidationError

from arch_search.errors import UsageError
from arch_search.experiment import nearest
from arch_search.spec import STRICT, EvaluationSpec
from arch_search.tasks.base import Task
from arch_search.tasks.language import LossByPosition, Perplexity

TASKS: dict[str, Task] = {
    "perplexity": Perplexity(),
    "loss_by_position": LossByPosition(),
}

for _task in TASKS.values():
    _task.Options.__pydantic_config__ = STRICT


def task(name: str) -> Task:
    """A task by its name. Raises UsageError naming the nearest."""
    if name not in TASKS:
        raise UsageError(f"evaluate: unknown task {name!r}; {nearest(name, list(TASKS))}")
    return TASKS[name]


def read_options(name: str, given: Mapping[str, Any]) -> Any:
    """A task's options from plain data, defaults filled in. Raises UsageError."""
    cls = task(name).Options
    try:
        return TypeAdapter(cls).validate_python(dict(given))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(map(str, problem["loc"]))
        raise UsageError(f"evaluate.{name}.{key}: {problem['msg'].lower()}") from None


def resolve(entries: Sequence[str | Mapping[str, Mapping[str, Any]]]) -> tuple[EvaluationSpec, ...]:
    """The file's `evaluate:` list with every option spelled out."""
    specs = []
    for entry in entries:
        pairs = {entry: {}} if isinstance(entry, str) else entry
        for name, options in pairs.items():
            specs.append(EvaluationSpec(task=name, options=asdict(read_options(name, options))))
    return tuple(specs)


def metric_names(specs: Sequence[EvaluationSpec]) -> list[str]:
    """Every metric that these evaluations report."""
    return [metric for spec in specs for metric in task(spec.task).metrics]
