"""What a sweep is, as the file says it and as the plan keeps it. Free of torch, Ray and Optuna.

Numbers that differ by budget are tokens; a rung is a budget at which every trial is scored.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveInt

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
Operator = Literal["<=", ">="]
_LIMIT = re.compile(r"\s*(<=|>=)\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([KMBT]?)\s*")
_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def parse_share(value: Any) -> Any:
    """'0.3%' or 0.003 -> 0.003."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", value)
        if match is None:
            raise ValueError(f"{value!r} is not a share; write 0.3% or 0.003")
        return float(match[1]) / (100 if match[2] else 1)
    return value


def _one_or_more(value: Any) -> Any:
    """A single choice may be written without its list."""
    return value if isinstance(value, list | tuple | dict) else [value]


def _parse_limit(value: Any) -> Any:
    """'<= 400K' -> a limit."""
    if isinstance(value, str):
        match = _LIMIT.fullmatch(value)
        if match is None:
            raise ValueError(f"{value!r} is not a limit; write '<= 400K' or '>= 0.5'")
        return {"operator": match[1], "bound": float(match[2]) * _UNITS[match[3]]}
    return value


def _named_sampler(value: Any) -> Any:
    """A sampler without options may be its name alone."""
    return {"name": value} if isinstance(value, str) else value


Share = Annotated[float, Field(gt=0, le=1), BeforeValidator(parse_share)]
SmallShare = Annotated[float, Field(ge=0, lt=1), BeforeValidator(parse_share)]
Depths = Annotated[
    tuple[Annotated[int, Field(gt=0, le=256)], ...],
    Field(min_length=1),
    BeforeValidator(_one_or_more),
]
Counts = Annotated[tuple[NonNegativeInt, ...], Field(min_length=1), BeforeValidator(_one_or_more)]
Names = Annotated[tuple[str, ...], BeforeValidator(_one_or_more)]


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeSpec:
    """Numbers from `low` to `high`: whole ones if both bounds are, else real ones."""

    low: float | int
    high: float | int
    log: bool = False
    step: float | int | None = None

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(
                f"a range from {self.low} to {self.high}; expected low below high"
                + (", and above 0 on a logarithmic scale" if self.log else "")
            )
        if self.step is not None and (self.step <= 0 or self.log):
            raise ValueError(f"step is {self.step}; expected one above 0, and none with log")

    @property
    def is_whole(self) -> bool:
        return all(isinstance(bound, int) for bound in (self.low, self.high))


Values = Annotated[RangeSpec | tuple[Any, ...], BeforeValidator(_one_or_more)]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutSpec:
    """Which blocks stand where. One of three forms.

    slots: a block for each of `depth` layers.
    counts: {block: how many} of `depth` layers, placed one block after the other at one of its
    `positions`; `fill` stands in all other layers.
    pattern: a layer pattern whose names in `where` are choices, the same wherever the name stands.
    """

    slots: Names = ()
    depth: Depths | None = None
    counts: dict[str, Counts] = field(default_factory=dict)
    fill: str | None = None
    positions: tuple[Literal["first", "last", "before_attention", "spread"], ...] = (
        "first",
        "last",
        "spread",
    )
    pattern: str | None = None
    where: dict[str, Names] = field(default_factory=dict)

    def __post_init__(self) -> None:
        forms = [bool(self.slots), bool(self.counts), self.pattern is not None]
        if sum(forms) != 1:
            raise ValueError(
                "a layout is one of slots (a block for each layer), counts (how many of each "
                "block), or pattern (with choices in where)"
            )
        if (self.pattern is None) == (self.depth is None):
            raise ValueError("depth says how many layers slots or counts have, and only those")
        if self.counts and self.fill is None:
            raise ValueError("counts need fill, the block of all other layers")
        if self.pattern is not None and not self.where:
            raise ValueError("a pattern needs where: the choices for names that stand in it")


@dataclass(frozen=True, kw_only=True, slots=True)
class SpaceSpec:
    """Everything that a trial may differ in. Options of a block are drawn only where it stands."""

    layout: LayoutSpec
    options: dict[str, dict[str, Values]] = field(default_factory=dict)
    width: Depths | None = None
    mlp_width: Depths | None = None
    learning_rate: Values | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerSpec:
    """A sampler: tpe, nsgaii, random, grid, or any of Optuna's by its class name, and options.

    history: how many trials TPE models; of more, the best quarter of that many and the newest.
    """

    name: str = "tpe"
    options: dict[str, Any] = field(default_factory=dict)
    history: Annotated[PositiveInt, Field(ge=100)] = 250  # whose best tenth are TPE's 25


@dataclass(frozen=True, kw_only=True, slots=True)
class PrunerSpec:
    """Who goes on at a rung. asha: the best 1/`reduction` there; median: the better half."""

    rule: Literal["asha", "median", "none"] = "asha"
    reduction: Annotated[PositiveInt, Field(ge=2)] = 3
    startup: PositiveInt | None = None  # scores at a rung before it judges; `reduction` of them


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitSpec:
    """A bound on a number known before training (`count/…`) or after it."""

    operator: Operator
    bound: float

    def excess(self, value: float) -> float:
        """By what share the bound is passed; 0 or less within it."""
        scale = abs(self.bound) or 1.0
        off = (value - self.bound) / scale
        off = off if self.operator == "<=" else -off
        return off if math.isfinite(off) else math.inf

    def __str__(self) -> str:
        return f"{self.operator} {self.bound:,g}"


Limit = Annotated[LimitSpec, BeforeValidator(_parse_limit)]


@dataclass(frozen=True, kw_only=True, slots=True)
class AgainSpec:
    """After the search: members of the front are trained anew from seeds that chose nothing."""

    members: PositiveInt = 4
    seeds: NonNegativeInt = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepSpec:
    """A sweep. `rungs` are shares of train.tokens; the last is always the whole.

    warmup and decay: of the warm-up-stable-decay schedule. The warm-up is a share of the whole
    budget and the same for every rung; the decay is a share of each rung's own tokens.
    """

    space: SpaceSpec
    trials: PositiveInt
    objectives: Annotated[dict[str, Literal["minimize", "maximize"]], Field(min_length=1)] = field(
        default_factory=lambda: {"val/bits_per_byte": "minimize"}
    )
    sampler: Annotated[SamplerSpec, BeforeValidator(_named_sampler)] = field(
        default_factory=SamplerSpec
    )
    rungs: Annotated[tuple[Share, ...], Field(min_length=1)] = (0.1, 0.3, 1.0)
    warmup: SmallShare = 0.02
    decay: Share = 0.2
    pruner: PrunerSpec = field(default_factory=PrunerSpec)
    immune: SmallShare = 0.1
    limits: dict[str, Limit] = field(default_factory=dict)
    enqueue: tuple[dict[str, Any], ...] = ()
    take: Names = ()  # experiments whose results are trials from the start, beside `trials`
    storage: str = ""  # an Optuna storage URL; a journal file in the experiment's folder if empty
    seed: NonNegativeInt = 0
    again: AgainSpec = field(default_factory=AgainSpec)

    def __post_init__(self) -> None:
        if list(self.rungs) != sorted(set(self.rungs)) or self.rungs[-1] != 1.0:
            raise ValueError(
                f"rungs are {[f'{share:g}' for share in self.rungs]}; expected rising shares of "
                "train.tokens that end with 1 (or 100%)"
            )
        if self.decay + self.warmup / self.rungs[0] >= 1:
            raise ValueError(
                f"warmup {self.warmup:g} of the whole and decay {self.decay:g} of a rung leave "
                f"nothing of the first rung ({self.rungs[0]:g}); lower them, or raise the rung"
            )

    def is_immune(self, number: int) -> bool:
        """Whether a trial is never pruned: every so many, whatever it scores, none chosen."""
        return math.floor((number + 1) * self.immune) > math.floor(number * self.immune)


SPECS = (
    *(RangeSpec, LayoutSpec, SpaceSpec, SamplerSpec, PrunerSpec, LimitSpec, AgainSpec, SweepSpec),
)
for _spec in SPECS:
    _spec.__pydantic_config__ = STRICT  # type: ignore[attr-defined]
