"""What a synthetic task is: options, and items as a pure function of (seed, index)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from arch_search.model import IGNORED
from arch_search.spec import Decoder
from arch_search.synthetic.draws import Draws

Purpose = Literal["train", "evaluate"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Examples:
    """B items. `targets[b, t]` is what to say after token t, IGNORED where nothing is asked.

    tokens, targets: (B, T) int64.
    """

    tokens: np.ndarray
    targets: np.ndarray

    @property
    def asked(self) -> np.ndarray:
        """(B, T) bool: where an answer is scored."""
        return self.targets != IGNORED


class Generator(ABC):
    """One synthetic task. `Options` is a frozen dataclass of plain data.

    prefixed: the first t tokens and targets of an item are those of the item of length t, so that
    one evaluation at the greatest length shows all shorter ones.
    decoder: what the model must read its features with.
    balanced: accuracy is also averaged over classes of targets, as the task's authors score it.
    """

    Options: ClassVar[type]
    prefixed: ClassVar[bool] = False
    balanced: ClassVar[bool] = False
    decoder: ClassVar[Decoder] = "none"

    @abstractmethod
    def vocabulary(self, options: Any) -> int:
        """How many tokens there are; targets are among them."""

    @abstractmethod
    def chance(self, options: Any, length: int) -> float:
        """The accuracy of the best answer that does not depend on the item's tokens."""

    def check(self, options: Any, length: int) -> None:  # noqa: B027 (most fit any length)
        """Raise ValueError if items of this length do not exist; says what would."""

    @abstractmethod
    def draw(self, draws: Draws, length: int, options: Any, purpose: Purpose) -> Examples:
        """The items that `draws` belongs to, `length` tokens each."""


def examples(
    generator: Generator,
    name: str,
    options: Any,
    *,
    length: int,
    indices: np.ndarray,
    purpose: Purpose,
    seed: int,
) -> Examples:
    """Items of a task by their indices: those to train on and to evaluate never share a stream."""
    return generator.draw(Draws(indices, name, purpose, seed), length, options, purpose)
