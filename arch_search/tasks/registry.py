"""The evaluations by name: one line each."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from pydantic import TypeAdapter, ValidationError

from arch_search.errors import UsageError
from arch_search.experiment import nearest
from arch_search.input_errors import said, worst
from arch_search.run_settings import EvaluationSpec
from arch_search.spec import STRICT
from arch_search.tasks.base import Task
from arch_search.tasks.collapse import CollapseTask
from arch_search.tasks.harness.task import LmEval
from arch_search.tasks.knockout import Knockout
from arch_search.tasks.language import LossByPosition, Perplexity
from arch_search.tasks.newlines import Newlines
from arch_search.tasks.synthetic import SyntheticEvaluation
from arch_search.tasks.text import TextEvaluation

TASKS: dict[str, Task] = {
    "perplexity": Perplexity(),
    "loss_by_position": LossByPosition(),
    "newlines": Newlines(),
    "collapse": CollapseTask(),
    "lm_eval": LmEval(),
    "knockout": Knockout(),
    "task": SyntheticEvaluation(),
    "passkey": TextEvaluation("passkey", depths=10),
    "needles": TextEvaluation("needles"),
    "entity_tracking": TextEvaluation("entity_tracking"),
    "programs": TextEvaluation("programs"),
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
        problem, others = worst(error)
        key = ".".join(map(str, problem["loc"]))
        if problem["type"] == "unexpected_keyword_argument":
            known = [one.name for one in fields(cls)]
            text = f"unknown option; {nearest(key, known)}"
        else:
            text = said(problem, others)
        raise UsageError(f"evaluate.{name}.{key}: {text}") from None


def resolve(entries: Sequence[str | Mapping[str, Mapping[str, Any]]]) -> tuple[EvaluationSpec, ...]:
    """The file's `evaluate:` list with every option spelled out.

    Raises:
        UsageError: an unknown task or option, or two evaluations that report one metric.
    """
    specs = []
    for entry in entries:
        pairs = {entry: {}} if isinstance(entry, str) else entry
        if not isinstance(pairs, Mapping) or not all(
            isinstance(v, Mapping) for v in pairs.values()
        ):
            raise UsageError(
                f"evaluate: {entry!r} is no evaluation; expected a name, or "
                "{name: {option: value}}"
            )
        for name, options in pairs.items():
            specs.append(EvaluationSpec(task=name, options=_written(name, options)))
    require_distinct(specs)
    return tuple(specs)


def _written(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Every option of an evaluation, but for those of `Task.later` at their defaults."""
    written = asdict(read_options(name, options))
    for key in task(name).later:
        if written[key] == getattr(task(name).Options(), key):
            del written[key]
    return written


def metric_names(specs: Sequence[EvaluationSpec]) -> list[str]:
    """Every metric that these evaluations report; one that ends in '/' stands for all within."""
    return [metric for spec in specs for metric in _names(spec)]


def is_reported(metric: str, known: Sequence[str]) -> bool:
    """Whether a metric is among those of `metric_names`."""
    return any(metric == name or (name.endswith("/") and metric.startswith(name)) for name in known)


def require_distinct(specs: Sequence[EvaluationSpec]) -> None:
    """Raise UsageError if two evaluations would report one metric: the later would hide the other.

    Options that differ do not make it another metric: what is compared is known by its name alone.
    """
    taken: dict[str, str] = {}
    for spec in specs:
        for metric in _names(spec):
            clash = next((known for known in taken if _overlap(known, metric)), None)
            if clash is not None:
                raise UsageError(
                    f"evaluate: {taken[clash]} and {spec.task} both report {metric!r}, and one "
                    "would hide the other; keep one, and get the other's numbers afterwards by "
                    f"`arch-search evaluate RUN --task {spec.task}`"
                )
        taken |= dict.fromkeys(_names(spec), spec.task)


def _names(spec: EvaluationSpec) -> tuple[str, ...]:
    return task(spec.task).metric_names(read_options(spec.task, spec.options))


def _overlap(one: str, other: str) -> bool:
    within = (one.endswith("/") and other.startswith(one)) or (
        other.endswith("/") and one.startswith(other)
    )
    return one == other or within
