"""A run's journal: one JSON record a line, and the one curve that its attempts add up to.

An attempt appends; nobody edits. A resumed attempt goes on from a checkpoint of an earlier one, so
the curve is the chain of attempts behind the last, each up to the step that the next resumed from.
"""

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arch_search.storage import AttemptFolder, RunFolder


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One line. `kind`: metrics (step, values), stream (step, tokens, text), event (text) or
    checkpoint.

    In a stream, `tokens` is the beginning of the rolling hash of all tokens seen up to the step,
    and `text` that of the text apart from order (earlier versions wrote none).
    """

    kind: str
    time: float
    step: int = 0
    values: dict[str, float] = field(default_factory=dict)
    text: str = ""
    tokens: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """The metrics logged together at one step; `time` in unix seconds."""

    step: int
    time: float
    values: dict[str, float]


class JournalWriter:
    """Appends records, each in one write, so that a kill can tear only the last line."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, kind: str, **fields: Any) -> None:
        record = {"kind": kind, **fields, "time": time.time()}
        line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
        if os.write(self._descriptor, line) != len(line):
            raise OSError("the journal could not be written in full: is the disk full?")

    def sync(self) -> None:
        """Make everything appended so far survive a power cut."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def read_journal(path: Path, offset: int = 0) -> tuple[list[Record], int]:
    """The records from a byte offset on, and the offset to read on from.

    A torn last line is left for the next call; a line that is no record is passed over.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return [], offset
    end = data.rfind(b"\n") + 1
    return [r for line in data[:end].splitlines() if (r := _parse(line))], offset + end


def _parse(line: bytes) -> Record | None:
    try:
        return Record(**json.loads(line))
    except (ValueError, TypeError):
        return None


def _chain(run: RunFolder, *, durable: bool) -> list[tuple[AttemptFolder, int | None]]:
    """The attempts behind the curve, oldest first, each with the last step that counts."""
    attempts = run.attempts()
    if not attempts:
        return []
    result = run.result()
    owner = run.attempt(result["attempt"]) if result else attempts[-1]
    settled = not durable or result is not None or bool((owner.end() or {}).get("final"))
    limit = None if settled else _covered(owner)
    chain = [(owner, limit)]
    while (before := chain[-1][0].lease().get("resumed_from")) is not None:
        chain.append((run.attempt(before["attempt"]), before["step"]))
    return chain[::-1]


def _covered(attempt: AttemptFolder) -> int:
    """The last step of an unfinished attempt that a checkpoint of its own covers; -1: none."""
    records, _ = read_journal(attempt.journal)
    return max((r.step for r in records if r.kind == "checkpoint"), default=-1)


def read_curve(run: RunFolder, *, durable: bool = True) -> tuple[Point, ...]:
    """A run's metrics over all its attempts, in the order of steps, one value a step and metric.

    Args:
        durable: only what a checkpoint covers or a finished attempt holds: what a later resumption
            cannot take back. False: everything that the last attempt has written, too.
    """
    points: list[Point] = []
    after = -1
    for attempt, limit in _chain(run, durable=durable):
        records, _ = read_journal(attempt.journal)
        metrics = [r for r in records if r.kind == "metrics" and r.step > after]
        points += _points(r for r in metrics if limit is None or r.step <= limit)
        after = max(after, limit if limit is not None else after)
    return tuple(points)


def read_stream(run: RunFolder) -> dict[int, str]:
    """The hash of the token stream up to each logged step, over all attempts of a run."""
    return {
        record.step: record.tokens
        for attempt in run.attempts()
        for record in read_journal(attempt.journal)[0]
        if record.kind == "stream"
    }


def read_text(run: RunFolder) -> dict[int, str]:
    """The hash of the text seen up to each logged step, as far as it was written."""
    return {
        record.step: record.text
        for attempt in run.attempts()
        for record in read_journal(attempt.journal)[0]
        if record.kind == "stream" and record.text
    }


def _points(records: Iterable[Record]) -> list[Point]:
    """Records by step; where a metric was logged twice at a step the first value stands."""
    seen: set[tuple[int, str]] = set()
    points = []
    for record in records:
        values = {k: v for k, v in record.values.items() if (record.step, k) not in seen}
        seen.update((record.step, key) for key in values)
        if values:
            points.append(Point(step=record.step, time=record.time, values=values))
    return sorted(points, key=lambda point: point.step)
