"""The experiment file: what a person writes, read strictly.

`defaults:` composes groups with Hydra (experiments/conf), OmegaConf merges the file and the
overrides of the command line over them, and pydantic builds frozen dataclasses: a key that nothing
reads is an error that names the nearest one.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)

from arch_search.composition import load_mapping
from arch_search.errors import UsageError
from arch_search.input_errors import naming_lines, said, worst
from arch_search.plan_spec import PrimarySpec, PublishedSpec
from arch_search.run_settings import LogSpec, ResourceSpec
from arch_search.spec import (
    STRICT,
    CurriculumSpec,
    Decoder,
    ExpertsSpec,
    OptimiserSpec,
    ScheduleSpec,
)
from arch_search.sweep_spec import RangeSpec, SweepSpec, parse_share
from arch_search.throughput.settings import ThroughputSpec
from blocks.options import nearest_name

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def parse_count(value: Any) -> Any:
    """'250K', '2M', 2e6 or 2000000 -> an integer; anything else is left to the validator."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:[eE]\d+)?)\s*([KMBT]?)\s*", value)
        if match is None:
            raise ValueError(f"{value!r} is not a count; write 250000, 250K or 2M")
        value = float(match[1]) * _UNITS[match[2]]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


Count = Annotated[PositiveInt, BeforeValidator(parse_count)]
Share = Annotated[float, BeforeValidator(parse_share)]
Position = Union[Literal["first", "last", "before_attention", "spread"], tuple[int, ...]]  # noqa: UP007


@dataclass(frozen=True, kw_only=True, slots=True)
class MlpFile:
    """The channel mixer of every layer: SwiGLU, and beside it a mixture of experts if asked for.

    width: 0 leaves it out, norm and all.
    """

    width: NonNegativeInt
    experts: ExpertsSpec | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFile:
    """A model by its layer pattern. `blocks` names variants of registered blocks."""

    pattern: str
    width: PositiveInt
    mlp: MlpFile
    blocks: dict[str, dict[str, Any]] = field(default_factory=dict)
    tie_embeddings: bool = True
    norm_eps: float = 1e-5
    decoder: Decoder = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFile:
    """The corpus and how it is cut, or a synthetic task.

    corpus: a name, or a mapping such as {folder: texts}; `arch-search data list` says which.
    tokenizer: a name, {bpe: 4096} to train one on the corpus, or {file: tokenizer.json}.
    reset: whether a document in a row sees nothing of the documents before it.
    vocabulary: given for a corpus that is not to be had here, so that it can be planned with.
    task: instead of a corpus, as {state_tracking: {group: S3}}.   items: how many of them there
    are, seen again each epoch; 0: each is new.   curriculum: shorter rows first; a
    corpus's rows are cut into them.
    """

    corpus: str | dict[str, Any] | None = None
    tokenizer: str | dict[str, Any] = "bytes"
    sequence_length: Count
    batch: Count
    reset: bool = False
    vocabulary: Count | None = None
    task: str | dict[str, Any] | None = None
    items: Annotated[NonNegativeInt, BeforeValidator(parse_count)] = 0
    curriculum: CurriculumSpec | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainFile:
    """How long and how every arm is trained.

    truncate: segments of so many tokens, within which gradients reach back, the state carried.
    start: a finished run or an import whose weights every arm begins with.
    """

    tokens: Count
    optimiser: OptimiserSpec = field(default_factory=OptimiserSpec)
    schedule: ScheduleSpec = field(default_factory=ScheduleSpec)
    precision: Literal["float32", "bfloat16"] = "float32"
    truncate: Annotated[NonNegativeInt, BeforeValidator(parse_count)] = 0
    start: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmsFile:
    """What varies. Either axes (all combinations, or the `cells` listed), or `explicit` arms.

    replace: the block whose layers are replaced.   with: what stands there instead.
    count, position: how many, and which ranking of the replaceable layers gives them; or
    at: the layers themselves (0 is the first).   vary: options of the replacing block, or
    init_salt, which only redraws its start.   choose: take this many of all combinations.
    controls: {arm: cell} beside the combinations, over which no factor's contrast averages.
    explicit: {arm: {any part of the file it changes}}.   factors: the keys that they mean to
    change, as in [data.sequence_length].   lengths: every arm once for each of these lengths of a
    row, with as many rows that a step has as many tokens.   drop: arms left out of all these, by
    name or as {factor: level}; the others stay as they are.
    """

    replace: str | None = None
    with_: tuple[str, ...] = ()
    count: tuple[PositiveInt, ...] = ()
    position: tuple[Position, ...] = ()
    at: tuple[int, ...] = ()
    vary: dict[str, Any] = field(default_factory=dict)
    cells: tuple[dict[str, Any], ...] = ()
    choose: PositiveInt | None = None
    controls: dict[str, dict[str, Any]] = field(default_factory=dict)
    explicit: dict[str, dict[str, Any]] = field(default_factory=dict)
    factors: tuple[str, ...] = ()
    lengths: tuple[Count, ...] = ()
    drop: tuple[str | dict[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class HoldFile:
    """One quantity kept within a share of the baseline's by one knob; see `arch_search.hold`."""

    by: str
    parameters: Share | None = None
    state: Share | None = None
    flops: Share | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ContrastFile:
    """A question to the arms; give one of levels, linear, interaction, chain, or `of` with `minus`.

    levels: each level of a factor minus each before it.   linear: the slope over its numbers.
    interaction: how one factor's effect changes with another's.   of, minus: the mean of the arms
    at some levels minus that of others, or of 'baseline'.   within: only these levels, for all.
    chain: names of arms, each minus the one before it and the last minus the first: a waterfall.
    """

    levels: str | None = None
    linear: str | None = None
    interaction: tuple[str, str] | None = None
    chain: tuple[str, ...] | None = None
    of: str | dict[str, Any] | None = None
    minus: str | dict[str, Any] | None = None
    within: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneFile:
    """Learning rates tried for each mixer before the comparison, with seeds of their own."""

    learning_rate: Annotated[tuple[PositiveFloat, ...], Field(min_length=2)]
    per: Literal["with"] = "with"
    seeds: PositiveInt = 1
    tokens: Count | None = None  # as many as the comparison's if not given


@dataclass(frozen=True, kw_only=True, slots=True)
class PrimaryFile:
    """The metric that decides, and the smallest difference that would matter."""

    metric: str = "val/bits_per_byte"
    smallest_effect: Share | None = None

    def resolve(self) -> PrimarySpec:
        return PrimarySpec(metric=self.metric, smallest_effect=self.smallest_effect)


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedsFile:
    """Seeds set apart: the replicates vary what is listed, in step."""

    init: tuple[int, ...]
    data: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackingFile:
    """Where MLflow is (empty: SQLite under the storage root), and a W&B project beside it."""

    uri: str = ""
    wandb: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentFile:
    """One ablation, or one sweep."""

    name: str
    question: str = ""
    model: ModelFile
    data: DataFile
    train: TrainFile
    baseline: dict[str, Any] | None = None
    arms: ArmsFile = field(default_factory=ArmsFile)
    hold: tuple[HoldFile, ...] = ()
    seeds: int | tuple[int, ...] | SeedsFile = 1
    primary: PrimaryFile = field(default_factory=PrimaryFile)
    contrasts: dict[str, str | ContrastFile] = field(default_factory=dict)
    noise: Share | None = None  # between seeds, as a share of the primary metric
    stopping_rule: str = "all planned seeds are run, then analysed once"
    report_residue: tuple[Literal["parameters", "state", "flops", "seconds"], ...] = ()
    tune: TuneFile | None = None
    published: PublishedSpec | None = None  # numbers of others, shown beside ours
    sweep: SweepSpec | None = None
    evaluate: tuple[str | dict[str, dict[str, Any]], ...] = ("perplexity",)
    log: LogSpec = field(default_factory=LogSpec)
    resources: ResourceSpec = field(default_factory=ResourceSpec)
    tracking: TrackingFile = field(default_factory=TrackingFile)
    throughput: ThroughputSpec = field(default_factory=ThroughputSpec)  # of the lane: bench


_FILES = (
    *(MlpFile, ModelFile, DataFile, TrainFile, ArmsFile, HoldFile, PrimaryFile, SeedsFile),
    *(ContrastFile, TuneFile, TrackingFile, ExperimentFile),
)
for _file in _FILES:
    _file.__pydantic_config__ = STRICT  # type: ignore[attr-defined]
_ADAPTER = TypeAdapter(ExperimentFile)
_BRANCHES = {  # as pydantic names them
    "SeedsFile": SeedsFile,
    "ContrastFile": ContrastFile,
    "RangeSpec": RangeSpec,
}


def validate(data: dict[str, Any], where: str) -> ExperimentFile:
    """Build the file's dataclasses. Raises UsageError naming the key and the nearest valid one."""
    data = dict(data)
    if isinstance(arms := data.get("arms"), dict):
        data["arms"] = _plural({("with_" if k == "with" else k): v for k, v in arms.items()})
    if isinstance(data.get("hold"), dict):
        data["hold"] = [data["hold"]]
    try:
        return _ADAPTER.validate_python(data)
    except ValidationError as error:
        raise UsageError(f"{where}: {_describe(error)}") from None


def load(path: Path, overrides: Sequence[str] = ()) -> ExperimentFile:
    """Read and validate an experiment file."""
    with naming_lines(path, overrides):
        return validate(load_mapping(path, overrides), str(path))


def _plural(arms: dict[str, Any]) -> dict[str, Any]:
    """One level of an axis may be written without its list; `position: [[0, 4]]` is one list."""
    for axis in ("with_", "count", "position"):
        if axis in arms and not isinstance(arms[axis], list | tuple):
            arms[axis] = [arms[axis]]
    return arms


def _describe(error: ValidationError) -> str:
    """The first problem in words, unknown keys first: they explain the rest."""
    problem, others = worst(error)
    keys = [str(part) for part in problem["loc"] if not _is_branch(part)]
    keys = ["with" if key == "with_" else key for key in keys]
    name = ".".join(keys)
    if problem["type"] == "unexpected_keyword_argument":
        parent = _dataclass_at(ExperimentFile, [str(part) for part in problem["loc"][:-1]])
        known = ["with" if f.name == "with_" else f.name for f in fields(parent)] if parent else []
        return f"unknown key {name!r}; {nearest(keys[-1], known)}"
    if problem["type"] == "missing":
        return f"{name!r} is missing"
    return f"{name}: {said(problem, others)}"


def _is_branch(part: int | str) -> bool:
    """Pydantic names the branch of a union that it tried; that is no key of the file."""
    if not isinstance(part, str):
        return False
    plain = part in ("int", "float", "str") or part in _BRANCHES
    return plain or part.startswith(("tuple[", "literal[", "function-", "dict["))


def _dataclass_at(cls: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        if key in _BRANCHES:
            cls = _BRANCHES[key]
            continue
        found = {f.name: f.type for f in fields(cls)}.get(key) if is_dataclass(cls) else None
        options = [found, *get_args(found)] if get_origin(found) is not None else [found]
        cls = next((option for option in options if is_dataclass(option)), None)
    return cls


def nearest(given: str, known: Sequence[str]) -> str:
    """'did you mean …? known: …' for an error message."""
    near = nearest_name(given, known)
    guess = f"did you mean {near!r}? " if near else ""
    return f"{guess}known here: {', '.join(sorted(known)) or 'none'}"
