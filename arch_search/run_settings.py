"""How a run is carried out: what it writes, how it is evaluated, what it takes of a machine.

Nothing here changes a weight, so that none of it is in a run's hash, nor in that of its code.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from arch_search.spec import STRICT, content_hash
from kernels.backends import check_names


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSpec:
    """What is written while training."""

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
    """What one run takes of a machine.

    stall_seconds: a run that does no step for so long is ended and retried; 0: never. It must
    cover the longest step, the first one's compilation included.
    backends: the one that each kernel must run on, by its name (kernels.backends.BACKENDS); others
    take the fastest that proves right where the run is.
    compile: whether torch.compile fuses what stands around the kernels; None: on a GPU.
    graphs: on a GPU, a step's gradients are recorded once for each shape of batch, and repeated as
    one CUDA graph: for small runs, whose kernels take less time than launching them.
    tuned: the hash of tuned kernel configurations, as a result names them, to run with.
    packed: runs share GPUs, as many on each as their memory, measured beforehand, and the
    processors allow; `gpus` is then 1.
    mps: runs that share a GPU of this machine compute there at the same time, by NVIDIA's MPS.
    """

    cpus: PositiveFloat = 1
    gpus: NonNegativeFloat = 0  # below 1: a share, of its memory as well
    packed: bool = False
    mps: bool = False
    micro_batch: NonNegativeInt = 0  # sequences in one forward pass; 0: the whole batch
    loader_workers: NonNegativeInt = 0
    stall_seconds: NonNegativeFloat = 1_800
    backends: dict[str, str] = field(default_factory=dict)
    compile: bool | None = None
    graphs: bool = False
    tuned: str = ""

    def __post_init__(self) -> None:
        check_names(self.backends)


for _spec in (LogSpec, EvaluationSpec, ResourceSpec):
    _spec.__pydantic_config__ = STRICT  # type: ignore[attr-defined]
