"""Evaluations of a model, done one after the other and kept with what they were made of."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arch_search.checkpoint import load_weights
from arch_search.code_hash import evaluation_hash
from arch_search.devices import device_model
from arch_search.environment import versions
from arch_search.integrity import damage, weights_hash
from arch_search.model import LanguageModel
from arch_search.run_settings import EvaluationSpec
from arch_search.sources import run_code
from arch_search.spec import ModelSpec, RunSpec
from arch_search.storage import RunFolder
from arch_search.tasks.base import EvaluationContext
from arch_search.tasks.registry import read_options, task


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """What text an imported model is evaluated on: a hash, and words for a reader."""

    hash: str
    words: str


def evaluate_model(
    model: LanguageModel,
    context: EvaluationContext,
    evaluations: Iterable[EvaluationSpec],
    run: RunFolder,
    *,
    checkpoint: Path,
    step: int | None = None,
    text: Text | None = None,
) -> None:
    """Do each evaluation and keep it in the run's folder, with the code and weights behind it.

    Args:
        checkpoint: the folder of the weights.
        step: if they are not those of the finished run.
        text: if it is not the run's own.
    """
    trained_on = context.data.task if context.data else None
    model_code = run_code({layer.kind for layer in model.spec.layers}, trained_on)
    about = {
        "model_code": model_code,
        "weights": weights_hash(checkpoint),
        "device": device_model(context.device),
        "versions": versions(),
        **({"text": text.words} if text else {}),
    }
    for evaluation in evaluations:
        context.tick()
        options = read_options(evaluation.task, evaluation.options)
        found = task(evaluation.task)(model, context, options)
        run.write_evaluation(
            evaluation,
            metrics=dict(found.metrics),
            tables={name: dict(table) for name, table in found.tables.items()},
            convention=found.convention,
            made={"code": evaluation_code(evaluation.task), **about, "time": time.time()},
            step=step,
            text=text.hash if text else "",
        )


def evaluation_code(name: str) -> str:
    """The hash of the source that an evaluation runs."""
    return evaluation_hash(type(task(name)).__module__)


def last_weights(run: RunFolder, spec: RunSpec) -> Path:
    """The checkpoint of a finished run's last step.

    Raises:
        ValueError: it is gone or damaged; says how to have it back.
    """
    found = run.latest_checkpoint()
    problem = ""
    if found is None or found[0] != spec.steps:
        problem = "is gone"
    elif why := damage(found[2]):
        problem = f"is damaged ({why})"
    if found is None or problem:
        raise ValueError(
            f"the checkpoint of the run's last step, {spec.steps}, {problem}, so that nothing more "
            "can be evaluated; to train the run again to the same weights and go on: "
            f"arch-search evaluate {run.hash} --retrain; or leave the new evaluation out"
        )
    return found[2]


def load_model(spec: ModelSpec, checkpoint: Path, device: Any) -> LanguageModel:
    """A model with the weights of a checkpoint."""
    model = LanguageModel(spec).to(device)
    load_weights(checkpoint, model)
    return model
