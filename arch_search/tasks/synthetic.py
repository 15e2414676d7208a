"""Evaluation on items of a synthetic task, at the training length and beyond it.

Accuracy counts asked positions, where the most probable token is the target. Sequence accuracy is
the share of items with every position right up to a length; the table has it for each position.
`chance` is the accuracy that needs no input, `sequence_chance`, for tasks written as text, the
share of whole answers that a guess gets right.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveInt

from arch_search.devices import autocast
from arch_search.model import LanguageModel
from arch_search.spec import DataSpec, ModelSpec, UnitShare
from arch_search.synthetic.base import Examples, Generator, examples
from arch_search.synthetic.registry import generator, read_task
from arch_search.synthetic.text import TextTask
from arch_search.tasks.base import Evaluation, EvaluationContext, Table, Task
from arch_search.tasks.chance import chance_of_accuracy

TOKENS_PER_FORWARD = 16_384
MULTIPLES = (1, 2, 4)  # of the training length, for tasks in which longer is harder
MOST_ROWS = 512  # of a forward pass


@dataclass(frozen=True, kw_only=True, slots=True)
class SyntheticOptions:
    """task: as the run was trained, if not given.   label: what its metrics' names begin with.

    items: at each length.   multiples: of the training length; 1, 2 and 4 for tasks whose items are
    prefixes of longer ones, else 1.   seed: of the items.   solved_at: accuracy that every position
    must reach for `solved`.
    """

    task: dict[str, dict[str, Any]] | None = None
    label: str = "task"
    items: PositiveInt = 500
    multiples: tuple[PositiveInt, ...] = ()
    seed: NonNegativeInt = 0
    solved_at: UnitShare = 0.999


class SyntheticEvaluation(Task):
    """Accuracy by token, at the last position, by sequence, and at the worst position."""

    Options = SyntheticOptions
    asks = "task"

    def metric_names(self, options: SyntheticOptions) -> tuple[str, ...]:
        kinds = ("accuracy", "last_accuracy", "sequence_accuracy", "least_accuracy")
        kinds = (*kinds, "balanced_accuracy")
        ends = [_suffix(m) for m in options.multiples or MULTIPLES]
        names = [f"{kind}{end}" for kind in kinds for end in ends]
        names = (*names, "solved", "chance", "sequence_chance")
        return tuple(f"{options.label}/{name}" for name in names)

    def check_run(self, model: ModelSpec, data: DataSpec, options: SyntheticOptions) -> None:
        name, task_options = fitting_task(data, options, model)
        task = generator(name)
        for length in _drawn(task, _lengths(task, data.sequence_length, options)):
            task.check(task_options, length)

    def __call__(
        self, model: LanguageModel, context: EvaluationContext, options: SyntheticOptions
    ) -> Evaluation:
        name, task_options = _task(context.data, options)
        task = generator(name)
        multiples = _multiples(task, options)
        lengths = _lengths(task, context.sequence_length, options)
        drawn = _drawn(task, lengths)
        metrics: dict[str, float] = {}
        tables: dict[str, Table] = {}
        scores: dict[int, Scores] = {}
        for length in drawn:
            task.check(task_options, length)
            items = examples(
                task, name, task_options, length=length, indices=np.arange(options.items),
                purpose="evaluate", seed=options.seed,
            )  # fmt: skip
            scores[length] = Scores(items, predict(model, items.tokens, context), task)
        for multiple, length in zip(multiples, lengths, strict=True):
            found = scores[length if length in scores else lengths[-1]]
            for kind, value in found.up_to(length).items():
                metrics[f"{options.label}/{kind}{_suffix(multiple)}"] = value
        worst = scores[drawn[-1]].worst()
        metrics[f"{options.label}/solved"] = float(worst >= options.solved_at)
        chance = chance_of_accuracy(name, task_options, context.sequence_length)
        metrics[f"{options.label}/chance"] = chance
        if isinstance(task, TextTask):
            whole = task.chance(task_options, context.sequence_length)
            metrics[f"{options.label}/sequence_chance"] = whole
        tables["by_position"] = _joined([s.by_position(length) for length, s in scores.items()])
        tables["items"] = _joined([s.by_item(length) for length, s in scores.items()])
        return Evaluation(
            metrics=metrics,
            tables=tables,
            convention=f"{options.items} items of {name} at {', '.join(map(str, lengths))} tokens; "
            f"solved: every position right in at least {options.solved_at:.1%} of them, to the "
            "greatest length",
        )


class Scores:
    """Which answers were right: `right` (B, T) bool, False where nothing is asked."""

    def __init__(self, items: Examples, predicted: np.ndarray, task: Generator) -> None:
        self.asked = items.asked
        self.right = self.asked & (predicted == items.targets)
        self.targets, self.predicted, self.balanced = items.targets, predicted, task.balanced

    def up_to(self, length: int) -> dict[str, float]:
        """Accuracies over the first `length` positions; none if nothing is asked there."""
        asked, right = self.asked[:, :length], self.right[:, :length]
        if not asked.any():
            return {}
        last = asked.shape[1] - 1 - asked[:, ::-1].argmax(axis=1)
        rows = np.flatnonzero(asked.any(axis=1))
        found = {
            "accuracy": float(right.sum() / asked.sum()),
            "last_accuracy": float(right[rows, last[rows]].mean()),
            "sequence_accuracy": float((right == asked).all(axis=1).mean()),
            "least_accuracy": self._least(asked, right),
        }
        if self.balanced:
            found["balanced_accuracy"] = balanced_accuracy(
                self.predicted[:, :length][asked], self.targets[:, :length][asked]
            )
        return found

    def worst(self) -> float:
        """The accuracy of the worst position."""
        return self._least(self.asked, self.right)

    def _least(self, asked: np.ndarray, right: np.ndarray) -> float:
        """Over positions asked in half of the items at least, else over all of them together."""
        counts = asked.sum(axis=0)
        often = counts * 2 >= len(asked)
        if not often.any():
            return float(right.sum() / asked.sum())
        return float((right.sum(axis=0)[often] / counts[often]).min())

    def by_position(self, length: int) -> Table:
        """Accuracy at each position that is asked, and of the whole sequence up to it."""
        counts = self.asked.sum(axis=0)
        places = np.flatnonzero(counts)
        whole = cumulative_sequence_accuracy(self.right, self.asked)
        return {
            "length": [length] * len(places),
            "position": (places + 1).tolist(),
            "items": counts[places].tolist(),
            "accuracy": (self.right.sum(axis=0)[places] / counts[places]).tolist(),
            "sequence_accuracy": whole[places].tolist(),
        }

    def by_item(self, length: int) -> Table:
        """How many answers of each item were asked and right, and where the first error is."""
        wrong = self.asked & ~self.right
        first = np.where(wrong.any(axis=1), wrong.argmax(axis=1) + 1, 0)
        return {
            "length": [length] * len(self.asked),
            "item": list(range(len(self.asked))),
            "asked": self.asked.sum(axis=1).tolist(),
            "right": self.right.sum(axis=1).tolist(),
            "first_error": first.tolist(),
        }


def cumulative_sequence_accuracy(right: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """(T,): the share of items with every asked position up to t right."""
    return 1 - np.logical_or.accumulate(asked & ~right, axis=1).mean(axis=0)


def balanced_accuracy(predicted: np.ndarray, targets: np.ndarray) -> float:
    """Recall averaged over the classes that are targets or were predicted (macro average)."""
    classes = np.union1d(targets, predicted)
    recalls = [
        float((predicted[targets == c] == c).mean()) if (targets == c).any() else 0.0
        for c in classes
    ]
    return float(np.mean(recalls))


@torch.inference_mode()
def predict(model: LanguageModel, tokens: np.ndarray, context: EvaluationContext) -> np.ndarray:
    """The most probable answer at every position: (B, T) -> (B, T) int64.

    Rows are taken in groups and long ones in pieces with carried state; neither changes what a row
    sees.
    """
    was_training = model.training
    model.eval()
    B, T = tokens.shape
    piece = min(T, TOKENS_PER_FORWARD)
    rows = min(max(TOKENS_PER_FORWARD // T, 1), MOST_ROWS)
    found = np.empty((B, T), np.int64)
    for start in range(0, B, rows):
        states = None
        for first in range(0, T, piece):
            context.tick()
            part = torch.from_numpy(tokens[start : start + rows, first : first + piece])
            with autocast(context.device, context.precision):
                logits, states = model(part.to(context.device), states)
            answers = logits.argmax(dim=-1).cpu().numpy()
            found[start : start + rows, first : first + piece] = answers
    model.train(was_training)
    return found


def training_length_accuracy(
    model: LanguageModel, context: EvaluationContext, tokens: int
) -> float:
    """Accuracy on about `tokens` tokens of items that are not trained on: for curves."""
    length = context.sequence_length
    name, options = _task(context.data, SyntheticOptions())
    indices = np.arange(max(tokens // length, 1))
    items = examples(
        generator(name), name, options,
        length=length, indices=indices, purpose="evaluate", seed=1,
    )  # fmt: skip
    return Scores(items, predict(model, items.tokens, context), generator(name)).up_to(length)[
        "accuracy"
    ]


def _task(data: DataSpec | None, options: SyntheticOptions) -> tuple[str, Any]:
    given = options.task or (data.task if data else None)
    if given is None:
        raise ValueError("evaluate.task.task: name one, as {task: {task: {state_tracking: {}}}}")
    return read_task(given)


def fitting_task(
    data: DataSpec | None, options: SyntheticOptions, model: ModelSpec
) -> tuple[str, Any]:
    """The task's name and options. Raises ValueError: none is named, or it has too many tokens."""
    name, task_options = _task(data, options)
    needed = generator(name).vocabulary(task_options)
    if needed > model.vocabulary:
        raise ValueError(f"{name} has {needed} tokens so, and the model {model.vocabulary}")
    return name, task_options


def _multiples(task: Generator, options: SyntheticOptions) -> list[int]:
    return sorted(options.multiples or (MULTIPLES if task.prefixed else (1,)))


def _lengths(task: Generator, training_length: int, options: SyntheticOptions) -> list[int]:
    return [multiple * training_length for multiple in _multiples(task, options)]


def _drawn(task: Generator, lengths: list[int]) -> list[int]:
    """Lengths at which items are drawn: prefixed ones of the greatest show the shorter, too."""
    return lengths[-1:] if task.prefixed else lengths


def _suffix(multiple: int) -> str:
    return "" if multiple == 1 else f"_{multiple}x"


def _joined(tables: list[Table]) -> Table:
    return {column: [v for table in tables for v in table[column]] for column in tables[0]}
