"""What an experiment is, frozen as data: its arms, runs, questions and findings in one `Plan`.

Free of torch, Ray and MLflow. No training imports this, so that a plan may learn to say more
without a finished run becoming another one.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from arch_search.errors import UsageError
from arch_search.run_settings import EvaluationSpec, LogSpec, ResourceSpec
from arch_search.spec import STRICT, DataSpec, ModelSpec, RunSpec, TrainSpec
from arch_search.sweep_spec import SweepSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmSpec:
    """One variant. `factors` holds its level on each axis; `counts` what was derived from it."""

    name: str
    factors: dict[str, Any]
    layout: str  # the canonical short pattern
    model: ModelSpec
    counts: dict[str, float]  # parameters, state_elements, forward_flops_per_token, ...
    is_baseline: bool = False
    held: dict[str, int] = field(default_factory=dict)  # where each knob of `hold` was turned to
    train: TrainSpec
    data: DataSpec
    replaced: tuple[int, ...] = ()  # the layers that differ from the base pattern
    also: tuple[dict[str, Any], ...] = ()  # factors of further cells that are the same model
    is_control: bool = False  # beside the factorial: no factor's contrast averages over it


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """An arm with a seed. Its name is experiment/arm/seed; its folder is its hash."""

    arm: str
    seed: int
    hash: str
    spec: RunSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class PrimarySpec:
    """The metric that decides, and the smallest relative difference that would matter."""

    metric: str = "val/bits_per_byte"
    smallest_effect: float | None = None  # a share, 0.003 for 0.3%


@dataclass(frozen=True, kw_only=True, slots=True)
class ContrastSpec:
    """A question put to the arms before any ran: the sum of weight times arm mean.

    The weights sum to zero. `family` is the name in the file, of which this may be one of several.
    """

    name: str
    family: str
    text: str  # what the number is, for a reader
    weights: dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingSpec:
    """What the planner found in the design.

    warning: arms differ in more than their factors, or factors move together.
    residue: what follows from a declared factor and was not held.
    limit: what is equal, or chosen, and bounds what the result can mean.
    """

    level: Literal["warning", "residue", "limit"]
    subject: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclarationSpec:
    """Something settled before a run: when it was, and whether results were there already."""

    what: str
    value: str
    time: str  # ISO 8601, UTC
    after_results: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class NoiseSpec:
    """The standard deviation between seeds once seeds are blocks, as a share of the metric."""

    share: float
    source: str  # given, or measured on which experiments
    df: int | None = None  # degrees of freedom it was measured with


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolutionSpec:
    """What a contrast can tell: found with 80 % power at 5 %, all contrasts of the plan at once.

    `in_noise` is in standard deviations between seeds; `share` in shares of the metric.
    """

    contrast: str
    in_noise: float
    share: float | None = None
    seeds_wanted: int | None = None  # for the smallest effect that matters


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneSpec:
    """A learning rate chosen for one level by a tuning experiment: mean metric at each rate."""

    level: str
    experiment: str
    metric: str
    means: dict[str, float]  # by learning rate, as text
    learning_rate: float
    failed: tuple[str, ...] = ()  # rates at which a run failed


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedSpec:
    """Numbers that others reported, to be shown beside ours: arm -> metric -> value."""

    source: str
    values: dict[str, dict[str, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """An experiment as it will be run. Written once; nothing later edits it."""

    name: str
    question: str
    created: str  # ISO 8601, UTC
    source: str  # the file as it was read, overrides applied
    arms: tuple[ArmSpec, ...]
    runs: tuple[PlannedRun, ...]
    primary: PrimarySpec
    evaluations: tuple[EvaluationSpec, ...]
    log: LogSpec
    resources: ResourceSpec
    tracking_uri: str
    notes: tuple[str, ...] = ()  # what the planner did to the file
    contrasts: tuple[ContrastSpec, ...] = ()  # none: every arm against the baseline
    findings: tuple[FindingSpec, ...] = ()
    declarations: tuple[DeclarationSpec, ...] = ()
    noise: NoiseSpec | None = None
    resolution: tuple[ResolutionSpec, ...] = ()
    tuned: tuple[TuneSpec, ...] = ()
    stopping_rule: str = ""
    published: PublishedSpec | None = None
    sweep: SweepSpec | None = None  # its arms and runs come while it runs
    sweep_version: str = ""  # hash of all that makes its trials comparable with each other
    wandb_project: str = ""  # or entity/project; empty: nothing is sent to Weights & Biases


for _spec in (
    *(ArmSpec, PlannedRun, PrimarySpec, Plan),
    *(ContrastSpec, FindingSpec, DeclarationSpec, NoiseSpec, ResolutionSpec, TuneSpec),
    *(PublishedSpec,),
):
    _spec.__pydantic_config__ = STRICT  # type: ignore[attr-defined]

_PLAN = TypeAdapter(Plan)


def plan_to_json(plan: Plan) -> str:
    """A plan as readable JSON."""
    return json.dumps(asdict(plan), indent=1, ensure_ascii=False)


def plan_from_json(text: str | bytes) -> Plan:
    """Read a `Plan` back. Raises pydantic.ValidationError, a ValueError."""
    return _PLAN.validate_json(text)


def read_plan(path: Path) -> Plan:
    """A plan from its file. Raises UsageError if it is damaged or of another version."""
    try:
        return plan_from_json(path.read_bytes())
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"])) or "the whole"
        raise UsageError(
            f"{path} is damaged, or of another version of arch-search ({where}: "
            f"{problem['msg'].lower()}); read it with that version, or submit again"
        ) from None
