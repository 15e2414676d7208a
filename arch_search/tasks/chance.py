"""The accuracy that needs no input: of the most frequent answer at each place of an answer."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np

from arch_search.synthetic.base import Examples
from arch_search.synthetic.draws import Draws
from arch_search.synthetic.registry import generator, read_task
from arch_search.synthetic.text import TextTask

ITEMS = (512, 8_192)  # least and most that are drawn
TOKENS = 1 << 20  # of all of them, about
ERRORS = 4.0  # standard errors by which a measured chance must exceed a task's own


def chance_of_accuracy(name: str, options: Any, length: int) -> float:
    """What `accuracy` is of the best answers that do not depend on the item.

    Measured on items drawn for it with a fixed seed, for tasks written as text, whose own `chance`
    is that of a whole answer, and for others whose own `chance` is thereby refuted.
    """
    task = generator(name)
    measured, error = _measured(name, json.dumps(asdict(options), sort_keys=True), length)
    own = task.chance(options, length)
    if isinstance(task, TextTask) or measured > own + ERRORS * error:
        return measured
    return own


@cache
def _measured(name: str, options: str, length: int) -> tuple[float, float]:
    read: Mapping[str, Any] = json.loads(options)
    _, task_options = read_task({name: read})
    count = int(np.clip(TOKENS // length, *ITEMS))
    draws = Draws(np.arange(count), name, "chance")
    return constant_accuracy(generator(name).draw(draws, length, task_options, "evaluate"))


def constant_accuracy(items: Examples) -> tuple[float, float]:
    """Accuracy of the most frequent answer at each place, and its standard error over items.

    Place k is the k-th position that an item asks. The answers of each half of the items are those
    most frequent in the other half, so that few items do not make them look better.
    """
    rows, _ = np.nonzero(items.asked)
    places = (np.cumsum(items.asked, axis=1) - 1)[items.asked]
    targets = items.targets[items.asked]
    right = np.zeros(len(targets), dtype=bool)
    for half in (0, 1):
        here = rows % 2 == half
        answers = _most_frequent(places[~here], targets[~here], int(places.max()) + 1)
        right[here] = targets[here] == answers[places[here]]
    accuracy = float(right.mean())
    off = np.bincount(rows, weights=right - accuracy, minlength=len(items.asked))
    return accuracy, float(np.sqrt(np.square(off).sum()) / len(targets))


def _most_frequent(places: np.ndarray, targets: np.ndarray, count: int) -> np.ndarray:
    """(count,): the target most often seen at each place; -1 where none was."""
    answers = np.full(count, -1, np.int64)
    pairs, seen = np.unique(np.stack([places, targets]), axis=1, return_counts=True)
    order = np.argsort(seen, kind="stable")
    answers[pairs[0, order]] = pairs[1, order]
    return answers
