"""What every sequence mixer offers, so that the platform can build, count, carry and check it."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from blocks.initialisation import Normal, Parameter

INITIAL_STD = 0.02

State = dict[str, Tensor]
"""What a mixer carries from one token to the next: named tensors, batch first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Exact counts of one mixer, tested against measured ones.

    `state_elements` is what one sequence carries whatever its length, apart from the last inputs of
    a short convolution (`convolution_elements`); attention's cache grows by
    `state_elements_per_token` instead. FLOPs count a multiply-add as two, for one token of a
    sequence of the length asked for, forward only, projections and convolution included.
    """

    parameters: int
    state_elements: int
    state_elements_per_token: int = 0
    convolution_elements: int = 0
    forward_flops_per_token: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelCost:
    """Exact counts of one channel mixer; of its parameters one token uses `active_parameters`."""

    parameters: int
    active_parameters: int
    forward_flops_per_token: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Drives:
    """What drives a mixer's state through a piece of a sequence, for those who look at states.

    log_keep: (B, T, N), the logarithm of the factor that each step puts on a head's old state; None
    where no such factor follows from the inputs alone. Its products say what is left of an early
    token: `exact`, at most (`upper`: the step takes away more), or at least (`lower`: the step
    carries the state by another way as well).
    inputs: by name, (B, T, heads, size), as the recurrence reads them.
    """

    log_keep: Tensor | None
    memory: Literal["exact", "upper", "lower"] = "exact"
    inputs: dict[str, Tensor]


class SequenceMixer(nn.Module):
    """A causal map (B, T, D) -> (B, T, D), with a state that can be carried.

    A subclass sets `Options`, a frozen, keyword-only, slotted dataclass whose fields carry
    `field(metadata={"help": ...})`, and leaves its parameters uninitialised (`torch.empty`):
    the model fills them from `declared_parameters`, by seed, name and shape alone.
    """

    Options: ClassVar[type]
    summary: ClassVar[str]  # one line for `arch-search blocks`
    kernels: ClassVar[tuple[str, ...]] = ()  # what it calls of `kernels`, by their backends' names
    initial_std: float = INITIAL_STD  # of projections; a model may set another before it fills them

    def __init__(self, options: Any, *, width: int, depth: int) -> None:
        """Build for model width `width` in a model of `depth` layers (for the residual scale).

        Raises:
            ValueError: options that do not fit each other or the width.
        """
        super().__init__()
        self.options = self.complete(options, width=width)
        self.width, self.depth = width, depth

    @classmethod
    def complete(cls, options: Any, *, width: int) -> Any:
        """Replace options left at None by the numbers that follow from the width; idempotent.

        Raises:
            ValueError: options that do not fit each other or the width.
        """
        return options

    @abstractmethod
    def forward(
        self, x: Tensor, state: State | None = None, *, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Mix a whole piece of a sequence.

        Args:
            x: (B, T, D).   state: what the piece before returned; the initial state if None.
            reset: (B, T) bool; True where a document begins: nothing before it is seen.
        Returns:
            y (B, T, D) and the state after the last token.
        """

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One token: x (B, D) -> y (B, D)."""
        y, state = self(x[:, None], state)
        return y[:, 0], state

    def drives(self, x: Tensor, state: State | None = None) -> Drives | None:
        """What the mixer makes of x (B, T, D) to drive its state; None: it says nothing of that."""
        return None

    @classmethod
    def check_device(cls, device: torch.device) -> None:
        """Refuse a device on which no kernel of the mixer can run, before anything is built there.

        Raises:
            BackendUnavailable: it is such a device.
        """
        return

    def uncompiled(self) -> tuple[str, ...]:
        """Methods that torch.compile must call as they are: kernels that it cannot look past."""
        return ()

    @abstractmethod
    def initial_state(
        self, batch: int, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> State:
        """The state before the first token."""

    @abstractmethod
    def declared_parameters(self) -> dict[str, Parameter]:
        """How each parameter starts and whether it is decayed, by its name in this module."""

    def projection(self) -> Parameter:
        """The start of a matrix that reads the residual stream."""
        return Parameter(Normal(self.initial_std), decay=True)

    def output_projection(self) -> Parameter:
        """The start of a matrix that writes to it: smaller, as 2 `depth` of them are summed."""
        return Parameter(Normal(self.initial_std / math.sqrt(2 * self.depth)), decay=True)

    @abstractmethod
    def cost(self, length: int) -> Cost:
        """Counts for sequences of `length` tokens."""
