"""The command line's verbs for Python: `arch_search.plan`, `submit`, `evaluate`, `results`."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd

from arch_search.plan_spec import Plan
from arch_search.records import results as _results
from arch_search.storage import Root

__all__ = ["evaluate", "plan", "results", "submit"]


def plan(
    file: str | PathLike[str],
    overrides: Sequence[str] = (),
    *,
    root: str | Path | None = None,
) -> Plan:
    """What an experiment file would run: arms, runs, sizes. Runs nothing.

    Raises:
        UsageError: anything wrong with the file.
    """
    from arch_search.planning import make_plan  # imports torch

    return make_plan(Path(file), Root(root).make(), overrides)


def submit(
    file: str | PathLike[str],
    overrides: Sequence[str] = (),
    *,
    root: str | Path | None = None,
    address: str | None = None,
    wait: bool = True,
) -> str:
    """Run an experiment on local Ray, or on the cluster at `address`; returns its name.

    Args:
        wait: return when every run has ended; otherwise as soon as the driver works.
    Raises:
        UsageError: the file, the root or the tracking server is wrong; nothing has run.
    """
    from arch_search.commands.submit import submit_file

    return submit_file(Path(file), overrides, Root(root).make(), address=address, wait=wait)


def results(name: str, *, root: str | Path | None = None) -> pd.DataFrame:
    """One row a run of an experiment: arm, factors, seed, how it ended, what it measured.

    Raises:
        UsageError: no experiment of this name.
    """
    return _results(name, Root(root))


def evaluate(
    run: str,
    evaluations: Sequence[str | Mapping[str, Mapping[str, Any]]],
    *,
    root: str | Path | None = None,
    step: int | None = None,
    again: bool = False,
    device: str = "cpu",
) -> pd.DataFrame:
    """Evaluate trained models later, as `arch-search evaluate`: a row a model and metric.

    Args:
        run: experiment/arm/seed, a run's hash, a checkpoint's folder, or an experiment.
        evaluations: as in an experiment file: ["newlines", {"perplexity": {"window": 512}}].
        step: of a checkpoint; the last if None.   again: also what was evaluated before.
    Raises:
        UsageError: no such model, evaluation or option.
    """
    import torch

    from arch_search.later_evaluation import evaluate_stored, find_models, show_in_mlflow
    from arch_search.tasks.registry import resolve

    where, specs = Root(root), resolve(evaluations)
    models = find_models(where, run, step=step)
    found = [
        outcome
        for model in models
        for outcome in evaluate_stored(
            where, model, specs, device=torch.device(device), again=again
        )
    ]
    show_in_mlflow(where, models)
    rows = [(one.model, one.task, *pair, one.note) for one in found for pair in one.metrics.items()]
    return pd.DataFrame(rows, columns=["model", "task", "metric", "value", "note"])
