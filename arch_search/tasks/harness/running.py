"""One task of lm-eval on one model: loaded with local data, run, and read off."""

import contextlib
import json
import logging
import math
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache as cached
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager

from arch_search.tasks.harness.local_data import local_data
from arch_search.tasks.harness.model import HarnessModel
from arch_search.tasks.harness.ruler_tokenizer import write_tokenizer
from arch_search.tasks.harness.suites import RULER_LENGTHS, SUITES, expand

OURS = Path(__file__).parent / "yaml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Absent:
    """A task that cannot run here, and why: most often data that are not there."""

    task: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """A task's scores, one row each, and one row for each of its items and metrics."""

    rows: list[dict[str, Any]]
    items: list[dict[str, Any]]


@cached
def _index(
    include: tuple[str, ...], *, defaults: bool, lengths: tuple[int, ...] = (), tokenizer: str = ""
) -> TaskManager:
    """lm-eval's tasks with ours; its own thousands take some ten seconds to find."""
    told = {"max_seq_lengths": list(lengths), "tokenizer": tokenizer} if lengths else None
    paths: list[str | Path] = [OURS, *include]
    return TaskManager(include_path=paths, include_defaults=defaults, metadata=told)


def _index_for(names: Sequence[str], include: tuple[str, ...]) -> TaskManager:
    few = _index(include, defaults=False)
    return few if set(names) <= set(few.all_tasks) else _index(include, defaults=True)


def known_tasks(names: Sequence[str], include: tuple[str, ...]) -> list[str]:
    """The tasks, groups and tags among which these names are to be looked for."""
    listed = [task for suite in SUITES.values() for task in suite.tasks]
    asked = [name for name in expand(names) if name not in listed]
    return [*_index_for(asked, include).all_tasks, *listed]


def run_task(name: str, model: HarnessModel, options: Any, cache: Path) -> Ran | Absent:
    """Evaluate one task, group or tag.

    Args:
        options: `LmEvalOptions`.   cache: for converted data sets, and RULER's tokenizer.
    """
    folder = Path(options.data) if options.data else None
    beside = [Path(path) for path in options.include]
    with (
        _quiet(),
        local_data(folder, beside, cache=cache / "datasets", download=options.download),
    ):
        _seed(options.seed)  # some tasks draw while they are loaded
        try:
            loaded = _manager(name, model, options, cache).load([name])
        except Exception as error:  # whatever a task's own code raises for data it does not find
            return Absent(task=name, reason=_first_line(error))
        for task in loaded["tasks"].values():
            if reason := _cannot_run(task):
                return Absent(task=name, reason=reason)
            _set_shots(task, options.shots)
            task.set_fewshot_seed(seed=options.seed)
        try:
            # Not `simple_evaluate`: it asks pip and the system about themselves for each task.
            results = evaluate(
                model, loaded, limit=options.limit or None, bootstrap_iters=0, log_samples=True
            )
        except OverflowError as error:  # a perplexity of a model gone wrong
            return Absent(task=name, reason=f"its numbers are too large ({error})")
    assert results is not None  # only a process of another rank gets none
    return Ran(rows=_rows(name, dict(results)), items=_items(dict(results)))


def _cannot_run(task: Any) -> str:
    if getattr(task, "UNSAFE_CODE", False):
        return "it would execute what the model writes"
    return "it needs images or sound" if getattr(task, "MULTIMODAL", False) else ""


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _set_shots(task: Any, shots: int | None) -> None:
    """As lm-eval's own command does: a task that says 0 keeps it, one that says nothing has 0."""
    own = task.get_config("num_fewshot")
    if own is None or (shots is not None and own != 0):
        task.set_config(key="num_fewshot", value=shots or 0)


def _manager(name: str, model: HarnessModel, options: Any, cache: Path) -> TaskManager:
    """The index that has the task; RULER's tasks are told the lengths and the tokenizer."""
    if not options.lengths and name not in SUITES["ruler"].tasks:
        return _index_for([name], options.include)
    tokenizer = write_tokenizer(model.encoder, cache / "tokenizers")
    lengths = options.lengths or RULER_LENGTHS
    return _index(options.include, defaults=True, lengths=lengths, tokenizer=tokenizer)


def _rows(asked: str, results: Mapping[str, Any]) -> list[dict[str, Any]]:
    chances = _chances(results)
    rows = []
    for task, found in results["results"].items():
        for key, value in found.items():
            metric, _, kind = key.partition(",")
            if not kind or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            if _is_unasked(metric, value):
                continue
            metric = _metric(metric)
            within = "" if task == asked else f"{task}/"
            suffix = "" if kind == "none" else f"_{kind}"
            rows.append(
                {
                    "task": task,
                    "name": f"lm_eval/{asked}/{within}{metric}{suffix}",
                    "value": float(value) if math.isfinite(value) else None,
                    "items": len(results["samples"].get(task, ())),
                    "chance": chances.get(task) if metric.startswith("acc") else None,
                    "shots": results["n-shot"].get(task),
                    "version": str(results["versions"].get(task)),
                    "content": str(results.get("task_hashes", {}).get(task, "")),
                }
            )
    return rows


def _chances(results: Mapping[str, Any]) -> dict[str, float]:
    """Of multiple choice: what guessing gets, the mean of one over the number of choices."""
    chances = {}
    for task, samples in results["samples"].items():
        kind = results["configs"].get(task, {}).get("output_type")
        counts = [len(sample["arguments"]) for sample in samples]
        if kind == "multiple_choice" and counts:
            chances[task] = sum(1 / count for count in counts) / len(counts)
    return chances


def _items(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for task, samples in results["samples"].items():
        for sample in samples:
            answer = json.dumps(sample["filtered_resps"], ensure_ascii=False, default=str)
            rows += [
                {
                    "task": task,
                    "item": sample["doc_id"],
                    "metric": _metric(metric),
                    "value": found[0],
                    "weight": found[1],
                    "answer": answer,
                    "target": str(sample["target"]),
                }
                for metric in sample["metrics"]
                if (found := _item_value(sample.get(metric))) is not None
                and not _is_unasked(metric, found[0])
            ]
    return rows


def _metric(name: str) -> str:
    """RULER names its scores by the prompt's length."""
    return f"accuracy_at_{name}" if name.isdigit() else name


def _is_unasked(name: str, value: float) -> bool:
    """RULER gives -1 for a length that it was not asked for."""
    return name.isdigit() and value < 0


def _item_value(given: object) -> tuple[float, float] | None:
    """An item's score and its weight in the mean, as lm-eval gives it; None for what is no number.

    Perplexities come as a log-likelihood with the words or bytes that it is divided by.
    """
    value, weight = given if isinstance(given, tuple | list) and len(given) == 2 else (given, 1.0)
    if not isinstance(value, int | float) or not isinstance(weight, int | float) or value != value:
        return None
    return float(value), float(weight)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if any(map(str.isalnum, line))]
    text = lines[0][:200] if lines else ""
    return text if type(error).__name__ == "DataAbsent" else f"{type(error).__name__}: {text}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """lm-eval and datasets say much that is of no use here; their errors are raised.

    Bars of progress are for a terminal; standard output is for our own answer.
    """
    with contextlib.ExitStack() as stack:
        if not sys.stderr.isatty():
            nowhere = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stderr(nowhere))
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        for logger in (logging.getLogger("lm_eval"), logging.getLogger("datasets")):
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        yield
