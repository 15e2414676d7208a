"""What a run trains on: windows of a corpus, or items of a synthetic task."""

from collections.abc import Mapping
from typing import Any, cast

from arch_search.data import Manifest, Split, StreamHash, TrainingStream, open_split
from arch_search.spec import RunSpec
from arch_search.synthetic.stream import TaskStream, TaskStreamHash

Stream = TrainingStream | TaskStream


def open_stream(spec: RunSpec, manifest: Manifest | None) -> Stream:
    """The batches of a run; `manifest` is None if it trains on a task."""
    if spec.data.task is not None:
        return TaskStream(spec.data, seed=spec.data_seed)
    assert manifest is not None, "planning prepares every corpus"
    return TrainingStream(
        open_split(manifest, "train"),
        sequence_length=spec.data.sequence_length,
        batch=spec.data.batch,
        seed=spec.data_seed,
    )


def open_hash(stream: Stream, state: Mapping[str, Any]) -> StreamHash | TaskStreamHash:
    """The rolling hashes of a stream, from the start if `state` is empty."""
    if isinstance(stream, TaskStream):
        return TaskStreamHash.from_state(stream, state) if state else TaskStreamHash(stream)
    return StreamHash.from_state(stream, state) if state else StreamHash(stream)


def held_out(manifest: Manifest | None) -> Split:
    """The validation split. Of a task there is none: planning refuses evaluations that read it."""
    return cast(Split, None) if manifest is None else open_split(manifest, "val")
