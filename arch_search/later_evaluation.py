"""Evaluations asked for after training: of finished runs, kept checkpoints and imported models."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from arch_search.data import Manifest, load_manifest, prepare
from arch_search.errors import UsageError
from arch_search.evaluating import Text, evaluate_model, last_weights
from arch_search.planned_data import check_without_corpus
from arch_search.run_settings import EvaluationSpec
from arch_search.sources import run_code
from arch_search.spec import ModelSpec, content_hash
from arch_search.storage import HASH, NAME, Root, RunFolder
from arch_search.stored_model import IMPORTS, StoredModel, find_stored_model
from arch_search.streams import held_out
from arch_search.tasks.base import EvaluationContext
from arch_search.tasks.registry import read_options, task
from arch_search.tasks.synthetic import SyntheticEvaluation, fitting_task

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What one evaluation of one model found.

    options: those that are not the defaults.   note: whether it was kept before, and is the same.
    text: what an imported model was evaluated on.
    """

    model: str
    task: str
    options: dict[str, Any]
    metrics: dict[str, float]
    convention: str
    note: str
    text: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """The text for a model that was not trained here: what its tokens are read and scored with."""

    corpus: str
    tokenizer: Any
    sequence_length: int


def find_models(root: Root, text: str, *, step: int | None = None) -> list[StoredModel]:
    """The models that a name stands for: one, or every trained run of an experiment.

    Raises:
        UsageError: there is none; or a finished run's last checkpoint is gone or damaged.
    """
    if "/" not in text and NAME.fullmatch(text) and root.experiment(text).path.is_dir():
        plan = root.experiment(text).plan()
        trained = [p for p in plan.runs if root.run(p.hash).result() is not None]
        if not trained:
            raise UsageError(f"no run of {text} has finished; wait, or name one of its checkpoints")
        names = [f"{text}/{planned.arm}/{planned.seed}" for planned in trained]
        return [_checked(root, find_stored_model(root, name, step=step), step) for name in names]
    return [_checked(root, find_stored_model(root, text, step=step), step)]


def _checked(root: Root, found: StoredModel, step: int | None) -> StoredModel:
    """The model, unless it is another than was asked for, or older than its finished run."""
    folder = folder_of(root, found)
    if step is not None and found.step != step:
        what = "was not trained here" if found.run is None else f"is of step {found.step}"
        raise UsageError(f"--step {step}: {found.name} {what}; leave --step out")
    by_folder = (Path(found.name) / "model.safetensors").exists()
    if found.run is not None and step is None and not by_folder and folder.result() is not None:
        try:
            last_weights(folder, found.run)
        except ValueError as error:
            raise UsageError(str(error)) from None
    return found


def folder_of(root: Root, model: StoredModel) -> RunFolder:
    """Where a model's evaluations are kept: its run's folder, or that of its import."""
    name = model.identity.partition("@")[0]
    if model.run is not None and HASH.fullmatch(name):
        return root.run(name)
    return RunFolder(root.path / IMPORTS / model.folder.name)


def evaluate_stored(
    root: Root,
    model: StoredModel,
    evaluations: Sequence[EvaluationSpec],
    *,
    device: torch.device,
    corpus: Corpus | None = None,
    again: bool = False,
    say: Say = print,
) -> Iterator[Outcome]:
    """Do the evaluations that were not done, or all of them `again`, and keep them.

    Those for which data were absent are tried again, too.

    Raises:
        UsageError: the data do not suit an evaluation, or there are none.
    """
    if corpus is not None and model.run is not None:
        raise UsageError(
            f"{model.name} was trained here, and is evaluated on the text beside that it saw; "
            "--corpus, --tokenizer and --length are for an imported model"
        )
    folder = folder_of(root, model)
    step, text, context = _step(folder, model), None, None
    if model.run is None:
        context = _context(root, model, device, corpus, say)
        text = _text_of(context)
    key: dict[str, Any] = {"step": step, "text": text.hash if text else ""}
    before = {spec.hash: folder.evaluation(spec, **key) for spec in evaluations}
    missing = [spec for spec in evaluations if again or not _is_whole(before[spec.hash])]
    if missing:
        context = context or _context(root, model, device, corpus, say)
        _check(missing, context, model.spec)
        _warn_of_changes(model, say)
        loaded, at = model.load(device), {"checkpoint": model.folder, "step": step}
        try:
            evaluate_model(loaded, context, missing, folder, **at, text=text)
        except ValueError as error:
            raise UsageError(str(error)) from None
    for spec in evaluations:
        found = folder.evaluation(spec, **key)
        assert found is not None
        note = _note(before[spec.hash], found, again=again)
        yield _outcome(model, step, found, note)


def _outcome(model: StoredModel, step: int | None, found: dict[str, Any], note: str) -> Outcome:
    spec = EvaluationSpec(**found["task"])
    return Outcome(
        model=model.name if step is None else f"{model.name} at step {step}",
        task=spec.task,
        options=changed_options(spec),
        metrics=found["metrics"],
        convention=found.get("convention", ""),
        note=note,
        text=found.get("made", {}).get("text", ""),
    )


def _text_of(context: EvaluationContext) -> Text:
    assert context.split is not None
    manifest, length = context.split.manifest, context.sequence_length
    return Text(
        hash=content_hash([manifest.hash, length]),
        words=f"{manifest.corpus} as {manifest.tokenizer}, {length} tokens in a row",
    )


def show_in_mlflow(root: Root, models: Iterable[StoredModel], say: Say = print) -> None:
    """Add later evaluations to the runs in MLflow that they are of; an outage is said, no error."""
    hashes = {folder_of(root, model).hash for model in models if model.run is not None}
    if not hashes or not any(one.read("tracking.json") for one in root.experiments()):
        return
    from arch_search.tracking.later import push_evaluations  # seconds of imports, where needed

    for name, why in push_evaluations(root, hashes).items():
        if why:
            say(f"MLflow has not got them ({why}); bring them by: arch-search rebuild {name}")


def changed_options(spec: EvaluationSpec) -> dict[str, Any]:
    """The options that are not the defaults."""
    defaults = asdict(read_options(spec.task, {}))
    given = json.loads(json.dumps([spec.options, defaults]))  # tuples and lists are alike
    return {key: value for key, value in given[0].items() if value != given[1].get(key)}


def kept_outcomes(root: Root, model: StoredModel) -> list[Outcome]:
    """What was evaluated so far: of a finished run, of a checkpoint, or of an import."""
    folder = folder_of(root, model)
    step = _step(folder, model)
    kept = folder.evaluations(step=step)
    return [_outcome(model, step, one, "kept from before") for one in kept]


def kept_evaluations(root: Root, model: StoredModel) -> list[EvaluationSpec]:
    """Those of `kept_outcomes`, each once."""
    folder = folder_of(root, model)
    kept = folder.evaluations(step=_step(folder, model))
    specs = [EvaluationSpec(**one["task"]) for one in kept]
    return list({spec.hash: spec for spec in specs}.values())


def _is_whole(found: dict[str, Any] | None) -> bool:
    """Whether an evaluation was done, and nothing that it asked for was absent."""
    return found is not None and not found["tables"].get("lm_eval_absent", {}).get("task")


def _step(folder: RunFolder, model: StoredModel) -> int | None:
    """The checkpoint's step, unless it is the end of a finished run, or no run's."""
    if model.run is None or model.step is None:
        return None
    is_last = folder.result() is not None and model.step == model.run.steps
    return None if is_last else model.step


def _note(before: dict[str, Any] | None, found: dict[str, Any], *, again: bool) -> str:
    if before is None or (not again and not _is_whole(before)):
        return "done"
    if not again:
        return "kept from before"
    same = all(before[part] == found[part] for part in ("metrics", "tables"))
    return "again: equal to before, to the bit" if same else "again: other numbers than before"


def _context(
    root: Root, model: StoredModel, device: torch.device, corpus: Corpus | None, say: Say
) -> EvaluationContext:
    run = model.run
    manifest: Manifest | None = None
    if corpus is not None and corpus.corpus:
        manifest = prepare(corpus.corpus, corpus.tokenizer, root.path)
    elif run is None:
        raise UsageError(
            f"{model.name} was not trained here; say what text it is evaluated on: "
            "--corpus NAME --tokenizer NAME"
        )
    elif run.data.task is None:
        manifest = load_manifest(root.path, run.data.manifest)
    if manifest is not None and manifest.vocabulary > model.spec.vocabulary:
        raise UsageError(
            f"tokenizer {manifest.tokenizer} has {manifest.vocabulary} tokens, {model.name} "
            f"{model.spec.vocabulary}; give the tokenizer that it was trained with"
        )
    length = corpus.sequence_length if corpus and corpus.sequence_length else model.training_length
    if not length:
        raise UsageError(f"{model.name} does not say its training length; give --length")
    return EvaluationContext(
        split=held_out(manifest),
        data=run.data if run else None,
        sequence_length=length,
        device=device,
        precision=run.train.precision if run else "float32",
        say=say,
    )


def _check(
    evaluations: Sequence[EvaluationSpec], context: EvaluationContext, model: ModelSpec
) -> None:
    """Raise UsageError where an evaluation does not suit the data or the model."""
    trained_on = context.data.task if context.data else None
    if trained_on is not None:
        check_without_corpus(next(iter(trained_on)), evaluations)
    for spec in evaluations:
        found, options = task(spec.task), read_options(spec.task, spec.options)
        try:
            if context.data is not None:
                found.check_run(model, context.data, options)
            elif isinstance(found, SyntheticEvaluation):
                fitting_task(None, options, model)
            if context.split is not None:
                found.check(context.split, context.sequence_length, options)
        except ValueError as error:
            raise UsageError(str(error)) from None


def _warn_of_changes(model: StoredModel, say: Say) -> None:
    if model.run is None:
        return
    here = run_code({layer.kind for layer in model.spec.layers}, model.run.data.task)
    if here != model.run.code:
        say(
            f"the source that trained {model.name} has changed since (hash {model.run.code}, here "
            f"{here}): its evaluation is marked so; if the change touches the model, check out "
            "the commit that result.json names"
        )
