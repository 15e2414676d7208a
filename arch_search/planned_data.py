"""The data of a planned arm: shards prepared here, or a corpus that is only known by its size."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from arch_search.data import Manifest, TrainingStream, open_split, prepare
from arch_search.data.corpora import CORPORA
from arch_search.errors import UsageError
from arch_search.experiment import DataFile
from arch_search.plan_spec import Plan
from arch_search.run_settings import EvaluationSpec
from arch_search.segments import check_curriculum
from arch_search.spec import DataSpec, ModelSpec, content_hash
from arch_search.synthetic.registry import generator, read_task, resolved_task
from arch_search.synthetic.stream import TaskStream
from arch_search.synthetic.text import TextTask
from arch_search.tasks.registry import read_options, task


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedData:
    """What planning needs of a corpus or a task; a corpus without a manifest is not here."""

    corpus: str
    tokenizer: str
    vocabulary: int
    manifest: Manifest | None = None
    task: dict[str, dict[str, Any]] | None = None

    @property
    def training_tokens(self) -> int | None:
        """Tokens in the training split, if they are here."""
        return self.manifest.splits["train"].tokens if self.manifest else None


def find_data(file: DataFile, known: dict[str, PlannedData], root: Path) -> PlannedData:
    """Prepare the corpus, or take the file's word for one that is not to be had here.

    Raises:
        UsageError: an unknown corpus without its vocabulary, or a vocabulary beside a known one.
    """
    key = content_hash([file.corpus, file.tokenizer, file.vocabulary, file.task])
    if key not in known:
        known[key] = _find(file, root)
    return known[key]


def _find(file: DataFile, root: Path) -> PlannedData:
    if file.task is not None:
        return _find_task(file)
    if file.corpus is None:
        raise UsageError("data: neither corpus nor task is given; name one of them")
    corpus, tokenizer = _name(file.corpus), _name(file.tokenizer)
    if file.vocabulary is not None:
        if corpus in CORPORA:
            raise UsageError(
                f"data.vocabulary is for a corpus that is not to be had here; {corpus} is "
                "registered, and its tokenizer gives the vocabulary"
            )
        return PlannedData(corpus=corpus, tokenizer=tokenizer, vocabulary=file.vocabulary)
    try:
        manifest = prepare(file.corpus, file.tokenizer, root)
    except ValueError as error:
        hint = "; to plan without it, give data.vocabulary" if corpus not in CORPORA else ""
        raise UsageError(f"data: {error}{hint}") from None
    return PlannedData(
        corpus=manifest.corpus,
        tokenizer=manifest.tokenizer,
        vocabulary=manifest.vocabulary,
        manifest=manifest,
    )


def _find_task(file: DataFile) -> PlannedData:
    """A task needs nothing prepared. Raises UsageError for keys that are a corpus'."""
    if file.corpus is not None:
        raise UsageError(f"data: corpus {file.corpus!r} and a task are given; keep one of them")
    if file.reset or file.vocabulary is not None:
        key = "reset" if file.reset else "vocabulary"
        raise UsageError(f"data.{key} is for a corpus; a task has none")
    name, options = read_task(file.task or {})
    return PlannedData(
        corpus=f"task {name}",
        tokenizer="tokens",
        vocabulary=generator(name).vocabulary(options),
        task=resolved_task({name: asdict(options)}),
    )


def _name(spec: str | dict[str, Any]) -> str:
    """What to call a corpus or tokenizer that may not be here."""
    return spec if isinstance(spec, str) else str(spec.get("name") or next(iter(spec), ""))


def data_spec(file: DataFile, found: PlannedData) -> DataSpec:
    """What a run sees: by the manifest's hash, wherever its files lie."""
    return DataSpec(
        corpus=found.corpus,
        tokenizer=found.tokenizer,
        sequence_length=file.sequence_length,
        batch=file.batch,
        manifest=found.manifest.hash if found.manifest else "",
        reset=file.reset,
        task=found.task,
        items=file.items,
        curriculum=file.curriculum,
    )


def check_data(data: DataSpec, found: PlannedData, evaluations: Sequence[EvaluationSpec]) -> None:
    """Raise UsageError if the data are too short to train on or to evaluate as asked."""
    if data.task is not None:
        _check_task(data, evaluations)
        return
    if data.items:
        raise UsageError("data.items is for a synthetic task; a corpus has none")
    try:
        check_curriculum(data)
    except ValueError as error:
        raise UsageError(f"data.{error}") from None
    if found.manifest is None:
        return
    length = data.sequence_length
    try:
        TrainingStream(
            open_split(found.manifest, "train"), sequence_length=length, batch=data.batch, seed=0
        )
        for evaluation in evaluations:
            options = read_options(evaluation.task, evaluation.options)
            task(evaluation.task).check(open_split(found.manifest, "val"), length, options)
    except ValueError as error:
        text = str(error)
        raise UsageError(text if text.startswith("evaluate") else f"data: {text}") from None


def check_evaluations(
    model: ModelSpec, data: DataSpec, evaluations: Sequence[EvaluationSpec], *, arm: str
) -> None:
    """Raise UsageError if an arm's model, or what it trains on, cannot be evaluated as asked."""
    for evaluation in evaluations:
        options = read_options(evaluation.task, evaluation.options)
        try:
            task(evaluation.task).check_run(model, data, options)
        except ValueError as error:
            text = str(error)
            where = "" if text.startswith("evaluate") else f"evaluate.{evaluation.task}: "
            raise UsageError(f"{where}{text} (arm {arm})") from None


def check_decoder(model: ModelSpec, data: DataSpec) -> None:
    """Raise UsageError unless the model reads its features as the task needs it."""
    needed = generator(next(iter(data.task))).decoder if data.task else "none"
    if model.decoder != needed:
        what = f"the task {next(iter(data.task))}" if data.task else "a corpus"
        raise UsageError(f"model.decoder is {model.decoder}; {what} needs {needed}")


def _check_task(data: DataSpec, evaluations: Sequence[EvaluationSpec]) -> None:
    assert data.task is not None
    [name] = data.task
    try:
        for step in (0, data.curriculum.steps) if data.curriculum else (0,):
            TaskStream(replace(data, batch=1, items=0), seed=0).check(step)
    except ValueError as error:
        raise UsageError(f"data: {name}: {error}") from None
    check_without_corpus(name, evaluations)


def check_without_corpus(name: str, evaluations: Sequence[EvaluationSpec]) -> None:
    """Raise UsageError unless a run that trained on this task can be evaluated so."""
    known = ("task", "text") if isinstance(generator(name), TextTask) else ("task",)
    for evaluation in evaluations:
        options = read_options(evaluation.task, evaluation.options)
        if task(evaluation.task).needs(options) not in known:
            raise UsageError(
                f"evaluate: {evaluation.task} asks about text, and the run trains on the "
                f"task {name}; evaluate [task], or train on a corpus"
            )


def require_data(plan: Plan) -> None:
    """Raises UsageError if an arm's corpus is not here: such a plan can be read, not run."""
    missing = sorted(
        {arm.data.corpus for arm in plan.arms if not (arm.data.manifest or arm.data.task)}
    )
    if missing:
        raise UsageError(
            f"{plan.name} cannot run here: {', '.join(missing)} is not prepared; say where the "
            "corpus is (arch-search data list shows how) and leave data.vocabulary out"
        )
