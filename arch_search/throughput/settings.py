"""What the throughput lane measures, as the key `throughput` of an experiment file. No torch."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
LONGEST, SHORTEST = 65_536, 1_024  # tokens: the context sweep's ends where nothing else is said

Kind = Literal["train", "prefill", "decode"]
Pair = tuple[PositiveInt, PositiveInt]


@dataclass(frozen=True, kw_only=True, slots=True)
class ThroughputSpec:
    """Which cells, and how often each is timed. A cell is a batch of sequences of one length.

    Every arm has `rounds` turns at a cell; in each, `warmup` steps are run and `steps` are timed.
    contexts: lengths for `tokens` in a batch (0: as many as a training batch of the file has);
        None: powers of two from 1,024, or the file's length if that is less, to 65,536.
    batches: of the file's sequence length; None: powers of two down from the file's batch to 1.
    cells: further (batch, length) to train at.   prefill: (batch, length) to read at once.
    decode: (batch, length read before), `decode_tokens` one at a time behind it.
    peak_tflops: of the device; None: what its maker states, or measured where that is not known.
    """

    rounds: Annotated[int, Field(ge=2)] = 5
    steps: PositiveInt = 3
    warmup: PositiveInt = 1
    tokens: NonNegativeInt = 0
    contexts: tuple[PositiveInt, ...] | None = None
    batches: tuple[PositiveInt, ...] | None = None
    cells: tuple[Pair, ...] = ()
    prefill: tuple[Pair, ...] | None = None
    decode: tuple[Pair, ...] | None = None
    decode_tokens: PositiveInt = 16
    peak_tflops: PositiveFloat | None = None


ThroughputSpec.__pydantic_config__ = STRICT  # type: ignore[attr-defined]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One thing that every arm is timed at: `kind`, sequences at once, their length in tokens."""

    kind: Kind
    batch: int
    length: int
    sweeps: tuple[str, ...] = field(default=())  # "context", "batch"

    @property
    def label(self) -> str:
        return f"{self.kind} {self.batch} x {self.length}"


def cells_of(spec: ThroughputSpec, *, batch: int, length: int) -> tuple[Cell, ...]:
    """Every cell once, the file's own training batch first.

    Args:
        batch: sequences in one forward pass of training.   length: of them, in tokens.
    Raises:
        ValueError: a context that does not divide the sweep's tokens.
    """
    sweeps: dict[Pair, set[str]] = {(batch, length): set()}
    for pair in spec.cells:
        sweeps.setdefault(pair, set())
    tokens = spec.tokens or batch * length
    contexts = _contexts(spec, tokens, length)
    for context in contexts:
        if tokens % context:
            raise ValueError(
                f"throughput.contexts: {context} does not divide {tokens} tokens a batch; choose "
                "lengths that do, or throughput.tokens"
            )
        sweeps.setdefault((tokens // context, context), set())
    halved = tuple(batch >> power for power in range(batch.bit_length()))
    batches = halved if spec.batches is None else spec.batches
    for size in batches:
        sweeps.setdefault((size, length), set())
    for (size, context), found in sweeps.items():  # whatever lies on a sweep is a point of it
        if contexts and size * context == tokens:
            found.add("context")
        if batches and context == length:
            found.add("batch")
    read = ((1, length),) if spec.prefill is None else spec.prefill
    decoded = ((1, length), (batch, length)) if spec.decode is None else spec.decode
    return (
        *(Cell(kind="train", batch=b, length=n, sweeps=tuple(sorted(found)))
          for (b, n), found in sweeps.items()),
        *(Cell(kind="prefill", batch=b, length=n) for b, n in dict.fromkeys(read)),
        *(Cell(kind="decode", batch=b, length=n) for b, n in dict.fromkeys(decoded)),
    )  # fmt: skip


def _contexts(spec: ThroughputSpec, tokens: int, length: int) -> tuple[int, ...]:
    if spec.contexts is not None:
        return spec.contexts
    powers = (2**power for power in range(1, LONGEST.bit_length()))
    least = min(SHORTEST, length)
    return tuple(n for n in powers if least <= n <= tokens and tokens % n == 0)
