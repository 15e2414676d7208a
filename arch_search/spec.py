"""What decides a run's weights, frozen as data: one `RunSpec` for each run, hashed whole.

Free of torch, Ray and MLflow, so that the driver, the writer, `status` and `compare` stay light.
This module is part of what a run's code hash covers: what decides no weights stands in
`run_settings` (how a run is carried out) and `plan_spec` (what an experiment is).
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


for _spec in (
    *(ExpertsSpec, LayerSpec, ModelSpec, CurriculumSpec, DataSpec),
    *(OptimiserSpec, ScheduleSpec, TrainSpec, RunSpec),
):
    _spec.__pydantic_config__ = STRICT  # type: ignore[attr-defined]

_RUN = TypeAdapter(RunSpec)


def run_to_json(spec: RunSpec) -> str:
    """A run's specification as readable JSON."""
    return json.dumps(asdict(spec), indent=1, ensure_ascii=False)


def run_from_json(text: str | bytes) -> RunSpec:
    """Read a `RunSpec` back. Raises pydantic.ValidationError, a ValueError."""
    return _RUN.validate_json(text)
