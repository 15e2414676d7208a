"""What is run, frozen as data: one `RunSpec` for each run, one `Plan` for each experiment.

Free of torch, Ray and MLflow, so that the driver, the writer, `status` and `compare` stay light.
A specification is validated when built and hashed over what changes the weights, nothing else.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
)

from arch_search.sweep_spec import SweepSpec
from kernels.backends import check_names

Decoder = Literal["none", "autoencoder"]
UnitShare = Annotated[float, Field(ge=0, le=1)]
STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


def content_hash(value: Any) -> str:
    """A short sha256 over canonical JSON: the order of keys does not matter, every field does."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertsSpec:
    """A mixture of experts: each token goes through `active` of `count`, each `width` wide."""

    count: int
    active: int
    width: int

    def __post_init__(self) -> None:
        if not 0 < self.active <= self.count or self.width <= 0:
            raise ValueError(
                f"experts: count {self.count}, active {self.active}, width {self.width}; expected "
                "numbers above 0, and no more active ones than there are"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerSpec:
    """One layer: a mixer of the registry with every option spelled out, and its channel mixer.

    With `experts`, `mlp_width` is that of the expert which every token goes through as well;
    without them, 0 leaves the channel mixer out.
    `init_salt` redraws the mixer's start and nothing else: a factor that should have no effect.
    """

    kind: str
    options: dict[str, Any]
    mlp_width: int
    experts: ExpertsSpec | None = None
    init_salt: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """A language model, resolved: no name in it needs a registry's defaults to be understood."""

    layers: tuple[LayerSpec, ...]
    width: int
    vocabulary: int
    tie_embeddings: bool
    norm_eps: float = 1e-5
    decoder: Decoder = "none"  # autoencoder: every position is read off the last one's features


@dataclass(frozen=True, kw_only=True, slots=True)
class CurriculumSpec:
    """Short rows first: `first` tokens, doubled at equal intervals, whole from step `steps` on."""

    first: PositiveInt
    steps: PositiveInt

    def length(self, step: int, whole: int) -> int:
        """Tokens of a row at a step."""
        doublings = max((whole - 1) // self.first, 0).bit_length()
        return min(whole, self.first * 2 ** (min(step, self.steps) * doublings // self.steps))


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSpec:
    """Which tokens a run sees. `manifest` is the hash of the prepared shards' manifest.

    `reset`: documents are packed, but none sees what stands before it in its row.
    `task`: instead of a corpus, a synthetic task with every option spelled out, of which `items`
    are seen again and again (0: each once).
    """

    corpus: str
    tokenizer: str
    sequence_length: int
    batch: int  # sequences in one optimiser step, over all devices and micro-batches
    manifest: str = ""
    reset: bool = False
    task: dict[str, dict[str, Any]] | None = None
    items: int = 0
    curriculum: CurriculumSpec | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimiserSpec:
    """AdamW, or Muon for matrices. Decay touches what a block or the model declares as decayed."""

    name: Literal["adamw", "muon"] = "adamw"
    learning_rate: PositiveFloat = 3e-3
    betas: tuple[float, float] = (0.9, 0.95)
    eps: PositiveFloat = 1e-10
    weight_decay: NonNegativeFloat = 0.1
    gradient_clip: NonNegativeFloat = 1.0  # global norm; 0 turns it off


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleSpec:
    """Cosine, or warm-up, stable, decay (linear); `final` is a share of the peak."""

    name: Literal["cosine", "wsd", "constant"] = "cosine"
    warmup: UnitShare = 0.1  # share of all steps
    decay: UnitShare = 0.1  # share of all steps, for wsd
    final: UnitShare = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainSpec:
    """How long and how: what changes the weights.

    truncate: rows are gone through in segments of so many tokens with the state carried, and
    gradients reach back within a segment only; 0: through the whole row.
    start: the run (its hash) or import (its identity) whose weights training begins with.
    """

    tokens: int
    optimiser: OptimiserSpec = field(default_factory=OptimiserSpec)
    schedule: ScheduleSpec = field(default_factory=ScheduleSpec)
    precision: Literal["float32", "bfloat16"] = "float32"
    truncate: NonNegativeInt = 0
    start: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSpec:
    """What is written while training; changes no weight and no hash."""

    every: PositiveInt = 10  # steps between logged losses
    checkpoint_every: PositiveInt = 50
    validate_every: PositiveInt = 100
    validation_tokens: PositiveInt = 16_384
    keep_checkpoints: PositiveInt = 2
    keep_trunk: bool = False  # where a schedule begins to decay, for runs that go on from there


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationSpec:
    """One evaluation by its registered name, with its options."""

    task: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        return content_hash(asdict(self))


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceSpec:
    """What one run takes of a machine; changes no weight.

    stall_seconds: a run that does no step for so long is ended and retried; 0: never. It must
    cover the longest step, the first one's compilation included.
    backends: the one that each kernel must run on, by its name (kernels.backends.BACKENDS); others
    take the fastest that proves right where the run is.
    compile: whether torch.compile fuses what stands around the kernels; None: on a GPU.
    tuned: the hash of tuned kernel configurations, as a result names them, to run with.
    packed: runs share GPUs, as many on each as their memory, measured beforehand, and the
    processors allow; `gpus` is then 1.
    """

    cpus: PositiveFloat = 1
    gpus: NonNegativeFloat = 0  # below 1: a share, of its memory as well
    packed: bool = False
    micro_batch: NonNegativeInt = 0  # sequences in one forward pass; 0: the whole batch
    loader_workers: NonNegativeInt = 0
    stall_seconds: NonNegativeFloat = 1_800
    backends: dict[str, str] = field(default_factory=dict)
    compile: bool | None = None
    tuned: str = ""

    def __post_init__(self) -> None:
        check_names(self.backends)


LATER = (
    *(("data", "task", None), ("data", "items", 0), ("data", "curriculum", None)),
    *(("train", "truncate", 0), ("train", "start", "")),
    ("model", "decoder", "none"),
)
"""Keys that were not there at first, by part, with what they are where nobody uses them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSpec:
    """All that decides a run's weights. `code` is the hash of the source that it uses."""

    model: ModelSpec
    data: DataSpec
    train: TrainSpec
    init_seed: int
    data_seed: int
    code: str

    @property
    def hash(self) -> str:
        """Keys that came later count only where they are used: older runs keep their hash."""
        content = asdict(self)
        for part, key, default in LATER:
            if content[part][key] == default:
                del content[part][key]
        return content_hash(content)

    @property
    def steps(self) -> int:
        """Optimiser steps: the tokens asked for, rounded up to whole steps."""
        return -(-self.train.tokens // (self.data.batch * self.data.sequence_length))


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


_SPECS = (
    *(
        ExpertsSpec,
        LayerSpec,
        ModelSpec,
        CurriculumSpec,
        DataSpec,
        OptimiserSpec,
        ScheduleSpec,
        TrainSpec,
        LogSpec,
    ),
    *(EvaluationSpec, ResourceSpec, RunSpec, ArmSpec, PlannedRun, PrimarySpec, Plan),
    *(ContrastSpec, FindingSpec, DeclarationSpec, NoiseSpec, ResolutionSpec, TuneSpec),
    *(PublishedSpec,),
)
for _spec in _SPECS:
    _spec.__pydantic_config__ = STRICT  # type: ignore[attr-defined]

_RUN, _PLAN = TypeAdapter(RunSpec), TypeAdapter(Plan)


def to_json(spec: RunSpec | Plan) -> str:
    """A specification as readable JSON."""
    return json.dumps(asdict(spec), indent=1, ensure_ascii=False)


def run_from_json(text: str | bytes) -> RunSpec:
    """Read a `RunSpec` back. Raises pydantic.ValidationError, a ValueError."""
    return _RUN.validate_json(text)


def plan_from_json(text: str | bytes) -> Plan:
    """Read a `Plan` back. Raises pydantic.ValidationError, a ValueError."""
    return _PLAN.validate_json(text)
