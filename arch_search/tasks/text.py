"""Tasks of prompts: a model is asked in its own tokens, answers greedily, and is scored two ways.

strict: the answer begins with what was to be said, to the character.   containment: the share of
the strings looked for that stand anywhere in the answer, case aside, as RULER scores; a model that
repeats all numbers it saw scores high on it. Each length, a multiple of the training length, is
the prompt's and the answer's tokens together, with the end-of-document token before them.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt

from arch_search.data import Split
from arch_search.data.encoding import tokenizer_of
from arch_search.data.tokenizers import Tokenizer
from arch_search.data.tokenizers.byte_level import BYTES
from arch_search.errors import UsageError
from arch_search.generation import Inference, generate
from arch_search.model import LanguageModel
from arch_search.spec import DataSpec, ModelSpec
from arch_search.synthetic.draws import Draws
from arch_search.synthetic.haystacks import sentences, sentences_of
from arch_search.synthetic.registry import generator, read_task
from arch_search.synthetic.text import Haystack, TextItem, TextTask, token_ids, training_haystack
from arch_search.tasks.base import Evaluation, EvaluationContext, Task

HAYSTACK_DOCUMENTS = 64  # of the validation split


FILES = ("folder", "jsonl", "parquet")  # keys of a corpus that name paths


def _from_here(corpus: str | dict[str, Any]) -> str | dict[str, Any]:
    """With paths from the root on: a worker may stand in another folder."""
    if isinstance(corpus, str):
        return corpus
    return {
        key: str(Path(value).expanduser().absolute())
        if key in FILES and isinstance(value, str)
        else value
        for key, value in corpus.items()
    }


Hay = Annotated[str | dict[str, Any], AfterValidator(_from_here)]


@dataclass(frozen=True, kw_only=True, slots=True)
class TextOptions:
    """task: options of the task.   items: at each length.   multiples: of the training length.

    further: tokens generated beyond as many as the answer has.   label: what its metrics' names
    begin with; the task's name if not given.   seed: of the items.   haystack: a corpus, as
    `data.corpus` names it, among whose sentences needles lie; that of the run if not given.
    """

    task: dict[str, Any] = field(default_factory=dict)
    items: PositiveInt = 100
    multiples: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (1, 2, 4)
    further: NonNegativeInt = 8
    label: str = ""
    seed: NonNegativeInt = 0
    haystack: Hay = ""


class TextEvaluation(Task):
    """Greedy answers to the prompts of one registered text task."""

    Options = TextOptions
    asks = "text"
    later = ("haystack",)

    def __init__(self, name: str, **fixed: Any) -> None:
        """`fixed` are options of the task that evaluation sets where the file does not."""
        self.name, self.fixed = name, fixed

    def metric_names(self, options: TextOptions) -> tuple[str, ...]:
        kinds = ("strict_accuracy", "contained_accuracy")
        label = options.label or self.name
        names = [f"{label}/{kind}_{m}x" for kind in kinds for m in options.multiples]
        return (*names, f"{label}/chance")

    def check(self, split: Split | None, sequence_length: int, options: TextOptions) -> None:
        """Raises ValueError: wrong options of the task, or a length without room for an item."""
        task, task_options = self._task(options)
        if options.haystack:
            self._check_haystack(options)
        for multiple in options.multiples:
            draws, length = Draws(np.arange(1), "check"), multiple * sequence_length
            try:
                task.items(draws, length, task_options, _tokenizer(split), lambda: ["Hay."])
            except ValueError as error:
                raise UsageError(f"evaluate.{self.name} at {multiple}x: {error}") from None

    def check_run(self, model: ModelSpec, data: DataSpec, options: TextOptions) -> None:
        if data.task is not None:
            self.check(None, data.sequence_length, options)

    def __call__(
        self, model: LanguageModel, context: EvaluationContext, options: TextOptions
    ) -> Evaluation:
        task, task_options = self._task(options)
        tokenizer, label = _tokenizer(context.split), options.label or self.name
        haystack = _haystack(context.split, options.haystack)
        chance = task.chance(task_options, context.sequence_length)
        metrics: dict[str, float] = {f"{label}/chance": chance}
        rows: dict[str, list[Any]] = defaultdict(list)
        for multiple in options.multiples:
            length = multiple * context.sequence_length
            draws = Draws(np.arange(options.items), self.name, "evaluate", options.seed)
            items = task.items(draws, length, task_options, tokenizer, haystack)
            said = answers(model, items, tokenizer, context, options.further)
            scores = [score(item, text) for item, text in zip(items, said, strict=True)]
            strict, contained = (float(np.mean(part)) for part in zip(*scores, strict=True))
            metrics[f"{label}/strict_accuracy_{multiple}x"] = strict
            metrics[f"{label}/contained_accuracy_{multiple}x"] = contained
            for i, (item, text) in enumerate(zip(items, said, strict=True)):
                found = (label, length, i, item.said, text, *scores[i])
                names = ("label", "length", "item", "expected", "said", "strict", "contained")
                for name, value in zip(names, found, strict=True):
                    rows[name].append(value)
                for name in ("depth", "distance"):
                    rows[name].append(item.about.get(name))
        return Evaluation(
            metrics=metrics,
            tables={"answers": dict(rows)},
            convention=f"{options.items} prompts of {self.name} at each length, greedy, as many "
            f"tokens as the answer has and {options.further} more; strict: begins with the answer; "
            "contained: share of the expected strings that occur"
            + (f"; haystack: {options.haystack}" if options.haystack else ""),
        )

    def _check_haystack(self, options: TextOptions) -> None:
        if self.name != "needles":
            raise UsageError(
                f"evaluate.{self.name}.haystack: only needles lie in one; leave it out"
            )
        try:
            sentences_of(options.haystack)
        except UsageError as error:
            raise UsageError(f"evaluate.needles.haystack: {error}") from None

    def _task(self, options: TextOptions) -> tuple[TextTask, Any]:
        name, task_options = read_task({self.name: {**self.fixed, **options.task}})
        found = generator(name)
        assert isinstance(found, TextTask)
        return found, task_options


def answers(
    model: LanguageModel,
    items: Sequence[TextItem],
    tokenizer: Tokenizer,
    context: EvaluationContext,
    further: int,
) -> list[str]:
    """What a model says after each prompt, greedily, in as many tokens as are expected and more."""
    inference = Inference(
        model=model, device=context.device, precision=context.precision, tick=context.tick
    )
    end = tokenizer.end_of_document
    prompts = [[end, *token_ids(tokenizer, item.prompt)] for item in items]
    tokens = max(len(token_ids(tokenizer, item.said)) for item in items) + further
    grown = generate(inference, prompts, tokens=tokens, is_over=lambda new: new[-1] == end)
    return [tokenizer.decode(new) for new in grown]


def score(item: TextItem, text: str) -> tuple[float, float]:
    """Strict and containment score of an answer."""
    found = [answer.lower() in text.lower() for answer in item.answers]
    strict = text.strip().startswith(item.said.strip())
    return float(strict), float(np.mean(found))


def _tokenizer(split: Split | None) -> Tokenizer:
    """That of the corpus; a run that trained on a text task was trained on bytes."""
    return BYTES if split is None else tokenizer_of(split.manifest)


def _haystack(split: Split | None, corpus: str | dict[str, Any]) -> Haystack:
    if corpus:
        return lambda: sentences_of(corpus)
    if split is None:
        return training_haystack
    found: list[str] = []

    def read() -> Sequence[str]:
        if not found:
            found.extend(sentences(_documents(split)))
        return found

    return read


def _documents(split: Split) -> list[str]:
    spellings = tokenizer_of(split.manifest).spellings
    return [
        b"".join(spellings[token] for token in split.document(i)).decode(errors="replace")
        for i in range(min(split.documents, HAYSTACK_DOCUMENTS))
    ]
