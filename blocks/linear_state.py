"""What Mamba-2 and the delta rules share: a state that each step maps linearly, and writes to."""

from abc import abstractmethod
from collections.abc import Callable

from torch import Tensor

from blocks.base import SequenceMixer, State

Inputs = dict[str, Tensor]
"""What the recurrence reads of a piece, by name, (B, T, ...); among them query, key, value."""

Recurrence = Callable[[Inputs, State | None, Tensor | None], tuple[Tensor, State]]
"""(inputs, state, reset) -> y (B, T, N, V) and what is carried on, all but the convolution."""


class LinearState(SequenceMixer):
    """S_t = A_t S_{t-1} + what is written at t;  y_t = S_tᵀ q_t.

    `forward` goes through `scan`, or through `recurrence` where somebody puts one in its place: so
    states can be changed in inference without a word of it in any block.
    """

    recurrence: Recurrence | None = None

    def recur(
        self, inputs: Inputs, state: State | None, reset: Tensor | None
    ) -> tuple[Tensor, State]:
        """Go through a piece by the recurrence in force."""
        return (self.recurrence or self.scan)(inputs, state, reset)

    def uncompiled(self) -> tuple[str, ...]:
        return ("scan",)

    @abstractmethod
    def scan(
        self, inputs: Inputs, state: State | None, reset: Tensor | None
    ) -> tuple[Tensor, State]:
        """The recurrence as it is trained."""

    @abstractmethod
    def pull_back(self, inputs: Inputs, steps: int) -> Tensor:
        """The queries as the state `steps` steps ago must be read: A_{t-r+1}ᵀ … A_tᵀ q_t.

        Args:
            inputs: of T + steps tokens; the query of the last T counts.
        Returns:
            (B, T, N, K), so that its product with S_{t-r} is what S_t still holds of it.
        """
