"""Evaluations asked for after training: of finished runs, kept checkpoints and imported models."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from arch_search.attempt import Attempt
from arch_search.data import Manifest, load_manifest, prepare
from arch_search.errors import UsageError
from arch_search.evaluating import evaluate_model, last_weights
from arch_search.lease import is_live
from arch_search.run_settings import EvaluationSpec, LogSpec, ResourceSpec
from arch_search.sources import run_code
from arch_search.storage import HASH, NAME, Root, RunFolder
from arch_search.stored_model import IMPORTS, StoredModel, find_stored_model
from arch_search.streams import held_out
from arch_search.tasks.base import EvaluationContext
from arch_search.tasks.registry import read_options, task
from arch_search.train import train

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What one evaluation of one model found.

    options: those that are not the defaults.   note: whether it was kept before, and is the same.
    """

    model: str
    task: str
    options: dict[str, Any]
    metrics: dict[str, float]
    convention: str
    note: str


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
        return [_checked(root, find_stored_model(root, name), None) for name in names]
    return [_checked(root, find_stored_model(root, text, step=step), step)]


def _checked(root: Root, found: StoredModel, step: int | None) -> StoredModel:
    """The model, unless it is older than the finished run that was asked for."""
    folder = folder_of(root, found)
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
    folder = folder_of(root, model)
    step = _step(folder, model)
    before = {spec.hash: folder.evaluation(spec, step=step) for spec in evaluations}
    missing = [spec for spec in evaluations if again or not _is_whole(before[spec.hash])]
    if missing:
        context = _context(root, model, device, corpus, say)
        _check(missing, context)
        _warn_of_changes(model, say)
        loaded = model.load(device)
        evaluate_model(loaded, context, missing, folder, checkpoint=model.folder, step=step)
    for spec in evaluations:
        found = folder.evaluation(spec, step=step)
        assert found is not None
        yield Outcome(
            model=model.name if step is None else f"{model.name} at step {step}",
            task=spec.task,
            options=changed_options(spec),
            metrics=found["metrics"],
            convention=found.get("convention", ""),
            note=_note(before[spec.hash], found, again=again),
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
    """What was evaluated of a finished run or an import so far."""
    return [
        Outcome(
            model=model.name,
            task=one["task"]["task"],
            options=changed_options(EvaluationSpec(**one["task"])),
            metrics=one["metrics"],
            convention=one.get("convention", ""),
            note="kept from before",
        )
        for one in folder_of(root, model).evaluations()
    ]


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
    if corpus is not None:
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


def _check(evaluations: Sequence[EvaluationSpec], context: EvaluationContext) -> None:
    for spec in evaluations:
        found, options = task(spec.task), read_options(spec.task, spec.options)
        if context.split is None and found.needs(options) == "corpus":
            raise UsageError(f"{spec.task} reads a corpus, and the run trained on a task")
        try:
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


def retrain(root: Root, text: str, *, device: torch.device, say: Say = print) -> None:
    """Have a finished run's lost last checkpoint back: train it again, from its start.

    Raises:
        UsageError: it is not finished, is at work, or the source is another than what trained it.
    """
    from arch_search.commands.logs import find_run

    run = find_run(root, text)
    spec, result = run.spec(), run.result()
    with contextlib.suppress(ValueError):
        last_weights(run, spec)
        return
    if result is None or is_live(run.attempts()[-1]):
        raise UsageError(f"run {text} has not finished; `arch-search resume` goes on with it")
    if run_code({layer.kind for layer in spec.model.layers}, spec.data.task) != spec.code:
        raise UsageError(
            f"run {text} was trained by other source code (hash {spec.code}); check out the "
            f"commit that its result names, {result['environment'].get('git_commit')}, for that"
        )
    manifest = None if spec.data.task else load_manifest(root.path, spec.data.manifest)
    say(f"trains {text} again, {spec.steps:,} steps")
    with Attempt.claim(run, experiment="retrained", keep_checkpoints=1) as attempt:
        trained = train(
            spec, attempt, manifest=manifest, log=LogSpec(),
            resources=ResourceSpec(gpus=float(device.type == "cuda")),
        )  # fmt: skip
        if trained.progress.stream["tokens"] != result["stream"]["tokens"]:
            raise ValueError("the run saw other tokens than before; its data were changed")
        before, now = result["metrics"]["train/final_loss"], trained.progress.loss
        how = "equal to before, to the bit" if before == now else f"it was {before}"
        attempt.event(f"trained again for its last checkpoint: final loss {now}, {how}")
        say(f"final loss {now:.6g}, {how}")
