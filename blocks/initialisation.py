"""Declared starts: what a parameter's first value is drawn from, and its statistics.

A first value depends on (init seed, parameter name, shape) and its declared distribution alone, so
that two models which share a parameter share its start to the bit, whatever else they contain.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


class Start(ABC):
    """A distribution of first values."""

    @abstractmethod
    def sample(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """A float32 tensor of `shape`."""

    @abstractmethod
    def moments(self, shape: torch.Size) -> tuple[float, float]:
        """The declared mean and standard deviation over all elements."""


@dataclass(frozen=True, slots=True)
class Normal(Start):
    """N(0, std²)."""

    std: float

    def sample(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        return torch.empty(shape).normal_(0.0, self.std, generator=generator)

    def moments(self, shape: torch.Size) -> tuple[float, float]:
        return 0.0, self.std


@dataclass(frozen=True, slots=True)
class Uniform(Start):
    """U(low, high)."""

    low: float
    high: float

    def sample(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        return torch.empty(shape).uniform_(self.low, self.high, generator=generator)

    def moments(self, shape: torch.Size) -> tuple[float, float]:
        return (self.low + self.high) / 2, (self.high - self.low) / math.sqrt(12)


@dataclass(frozen=True, slots=True)
class Constant(Start):
    """One value everywhere."""

    value: float

    def sample(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        return torch.full(shape, self.value)

    def moments(self, shape: torch.Size) -> tuple[float, float]:
        return self.value, 0.0


@dataclass(frozen=True, slots=True)
class Identity(Start):
    """A stack (..., V, V) of identity matrices, times `gain`."""

    gain: float = 1.0

    def sample(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        return (self.gain * torch.eye(shape[-1])).expand(shape).clone()

    def moments(self, shape: torch.Size) -> tuple[float, float]:
        p = 1 / shape[-1]
        return self.gain * p, self.gain * math.sqrt(p * (1 - p))


@dataclass(frozen=True, slots=True)
class Orthogonal(Start):
    """A stack (..., V, V) of matrices drawn evenly from the orthogonal group (Haar), times `gain`.

    By QR of a normal matrix with the signs of R's diagonal divided out (Mezzadri 2007).
    """

    gain: float = 1.0

    def sample(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        q, r = torch.linalg.qr(torch.empty(shape).normal_(generator=generator))
        return self.gain * q * torch.diagonal(r, dim1=-2, dim2=-1).sign()[..., None, :]

    def moments(self, shape: torch.Size) -> tuple[float, float]:
        return 0.0, self.gain / math.sqrt(shape[-1])


@dataclass(frozen=True, slots=True)
class LogUniformRate(Start):
    """log A with A ~ U(low, high): the log-rate of a decay gate (Mamba-2's A_log)."""

    low: float = 0.0
    high: float = 16.0

    def sample(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        u = torch.empty(shape, dtype=torch.float64).uniform_(0.0, 1.0, generator=generator)
        # 1 - u lies in (0, 1]: no rate is exactly zero, whose logarithm would be -inf
        return (self.low + (self.high - self.low) * (1 - u)).log().float()

    def moments(self, shape: torch.Size) -> tuple[float, float]:
        a, b = max(self.low, 1e-300), self.high
        if a == b:
            return math.log(a), 0.0
        if self.low <= 0:  # log of U(0, b): mean log b - 1, variance 1
            return math.log(b) - 1.0, 1.0
        mean = (b * math.log(b) - a * math.log(a)) / (b - a) - 1.0
        second = (
            b * (math.log(b) ** 2 - 2 * math.log(b) + 2)
            - a * (math.log(a) ** 2 - 2 * math.log(a) + 2)
        ) / (b - a)
        return mean, math.sqrt(max(second - mean**2, 0.0))


@dataclass(frozen=True, slots=True)
class InverseSoftplusLogUniform(Start):
    """softplus⁻¹(dt), dt log-uniform on [low, high], at least `floor` (Mamba-2's dt_bias)."""

    low: float = 1e-3
    high: float = 1e-1
    floor: float = 1e-4

    def sample(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        u = torch.empty(shape, dtype=torch.float64).uniform_(0.0, 1.0, generator=generator)
        return self._of_quantile(u).float()

    def _of_quantile(self, u: Tensor) -> Tensor:
        dt = torch.exp(math.log(self.low) + u * (math.log(self.high) - math.log(self.low)))
        dt = dt.clamp(min=self.floor)
        return dt + torch.log(-torch.expm1(-dt))

    def moments(self, shape: torch.Size) -> tuple[float, float]:
        x = self._of_quantile((torch.arange(4096, dtype=torch.float64) + 0.5) / 4096)
        return x.mean().item(), x.std(correction=0).item()


Role = Literal["", "recurrence", "gate", "rate", "step", "bias"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """How a parameter starts, whether weight decay pulls on it, and its role in a recurrence.

    recurrence: the matrix W that carries the old state into the new one, its last axis V.
    gate: a matrix through which the state moves a gate.
    rate, step: log A and softplus⁻¹(dt) of a gate exp(-A dt);  bias: b of a gate σ(b).
    Roles let a plan compare how long different mixers remember at their start.
    """

    start: Start
    decay: bool
    role: Role = ""


def named_generator(seed: int, name: str, shape: torch.Size) -> torch.Generator:
    """A CPU generator that depends on seed, name and shape alone."""
    text = f"{seed}/{name}/{'x'.join(map(str, shape))}"
    digest = hashlib.sha256(text.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
