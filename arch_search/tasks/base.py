"""What an evaluation is: options, one function of a model, metrics and tables."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch

from arch_search.data import Split
from arch_search.model import LanguageModel
from arch_search.spec import DataSpec, ModelSpec

Table = Mapping[str, list[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Headline numbers, and tables of what stands behind them (one row an item).

    convention: what the numbers count, and how the text was cut, in words a reader can check.
    """

    metrics: Mapping[str, float]
    tables: Mapping[str, Table] = field(default_factory=dict)
    convention: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationContext:
    """What an evaluation may use beside the model.

    tick: to be called between pieces of work, so that a long evaluation is not taken for one that
    hangs; it may raise `Stopped` or `Fenced`.
    data: what the run trained on, if it is known.
    say: takes a line that a reader of the run's log should know, such as data that are absent.
    """

    split: Split
    sequence_length: int
    device: torch.device
    precision: str
    data: DataSpec | None = None
    tick: Callable[[], None] = lambda: None
    say: Callable[[str], None] = lambda text: None


class Task(ABC):
    """One evaluation. `Options` is a frozen dataclass; `metrics` is what it reports with any.

    asks: what a run must have trained on: a corpus; a synthetic task; or text, be it of a corpus or
    of a task that is written as text.
    later: options that came when results were kept already; at their defaults they are left out of
    what identifies an evaluation.
    """

    Options: ClassVar[type]
    metrics: ClassVar[tuple[str, ...]] = ()
    asks: ClassVar[Literal["corpus", "task", "text"]] = "corpus"
    later: ClassVar[tuple[str, ...]] = ()

    def metric_names(self, options: Any) -> tuple[str, ...]:
        """What it reports with these options; no two evaluations of a run may share a name.

        A name that ends in '/' stands for all that begin so.
        """
        return self.metrics

    def needs(self, options: Any) -> Literal["corpus", "task", "text"]:
        """What a run must know for it with these options; see `asks`."""
        return self.asks

    def check(  # noqa: B027 (most tasks have nothing to check)
        self, split: Split, sequence_length: int, options: Any
    ) -> None:
        """Raise ValueError if the data cannot be evaluated so; called before anything runs."""

    def check_run(  # noqa: B027 (most tasks suit any model)
        self, model: ModelSpec, data: DataSpec, options: Any
    ) -> None:
        """Raise ValueError if a model that trains on `data` cannot be evaluated so."""

    @abstractmethod
    def __call__(
        self, model: LanguageModel, context: EvaluationContext, options: Any
    ) -> Evaluation:
        """Measure a model.

        Args:
            options: an instance of `Options`.
        Raises:
            ValueError: options that do not fit the data or the model.
        """
