"""The data of a planned arm: shards prepared here, or a corpus that is only known by its size."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arch_search.data import Manifest, TrainingStream, open_split, prepare
from arch_search.data.corpora import CORPORA
from arch_search.errors import UsageError
from arch_search.experiment import DataFile
from arch_search.spec import DataSpec, EvaluationSpec, Plan
from arch_search.tasks.registry import read_options, task


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedData:
    """What planning needs of a corpus. Without a manifest nothing can be trained on it here."""

    vocabulary: int
    manifest: Manifest | None = None

    @property
    def training_tokens(self) -> int | None:
        """Tokens in the training split, if they are here."""
        return self.manifest.splits["train"].tokens if self.manifest else None


def find_data(file: DataFile, known: dict[tuple[str, str], PlannedData], root: Path) -> PlannedData:
    """Prepare the corpus, or take the file's word for one that is not to be had here.

    Raises:
        UsageError: an unknown corpus without its vocabulary, or a vocabulary beside a known one.
    """
    key = (file.corpus, file.tokenizer)
    if key not in known:
        known[key] = _find(file, root)
    return known[key]


def _find(file: DataFile, root: Path) -> PlannedData:
    if file.vocabulary is not None:
        if file.corpus in CORPORA:
            raise UsageError(
                f"data.vocabulary is for a corpus that is not to be had here; {file.corpus} is "
                "registered, and its tokenizer gives the vocabulary"
            )
        return PlannedData(vocabulary=file.vocabulary)
    try:
        manifest = prepare(file.corpus, file.tokenizer, root)
    except ValueError as error:
        hint = "; to plan without it, give data.vocabulary" if file.corpus not in CORPORA else ""
        raise UsageError(f"data: {error}{hint}") from None
    return PlannedData(vocabulary=manifest.vocabulary, manifest=manifest)


def check_data(data: DataSpec, found: PlannedData, evaluations: Sequence[EvaluationSpec]) -> None:
    """Raise UsageError if the corpus is too short to train on or to evaluate as asked."""
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
        raise UsageError(f"data: {error}") from None


def require_data(plan: Plan) -> None:
    """Raises UsageError if an arm's corpus is not here: such a plan can be read, not run."""
    missing = sorted({arm.data.corpus for arm in plan.arms if not arm.data.manifest})
    if missing:
        raise UsageError(
            f"{plan.name} cannot run here: {', '.join(missing)} is not prepared; register the "
            "corpus (arch_search/data/corpora) and leave data.vocabulary out"
        )
