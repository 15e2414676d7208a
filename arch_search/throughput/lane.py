"""Times the arms of a plan at every cell, in turn (A B C A B C), and writes down what it found."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from arch_search.devices import device_model
from arch_search.environment import describe_environment
from arch_search.micro_batches import is_out_of_memory
from arch_search.plan_spec import ArmSpec
from arch_search.run_settings import ResourceSpec
from arch_search.throughput.contender import Contender, Turn
from arch_search.throughput.flops import (
    TRAINING,
    OverPeak,
    forward_flops,
    measured_peak,
    stated_peak,
    utilisation,
)
from arch_search.throughput.record import OK, OUT_OF_MEMORY, Record
from arch_search.throughput.resuming import kept_rows, what_is_timed
from arch_search.throughput.settings import Cell, ThroughputSpec, cells_of
from arch_search.throughput.timing import summarise, summarise_ratio
from arch_search.warm_up import compiles
from kernels.backends import ask_for

SIMPLE = ResourceSpec()
HELD_SHARE = 0.25  # of a GPU's memory, by the parameters of arms that wait for their turn
FOREIGN_BYTES = 2**30  # more of the device's memory than this, and somebody else computes there

log = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class _Times:
    """An arm's turns at one cell, or why it has none."""

    turns: list[Turn] = field(default_factory=list)
    state: str = OK

    @property
    def graphed(self) -> bool:
        """Whether every turn read or decoded as a graph."""
        return all(turn.launched for turn in self.turns)

    def seconds(self, *, graphs: bool) -> list[list[float]]:
        """Of each turn's calls; kernel by kernel if not `graphs`."""
        return [turn.seconds if graphs else turn.launched or turn.seconds for turn in self.turns]


def measure(
    experiment: str,
    arms: Sequence[ArmSpec],
    spec: ThroughputSpec,
    *,
    device: torch.device,
    resources: ResourceSpec = SIMPLE,
    tuned: Path | None = None,
    before: Record | None = None,
    report: Callable[[Record], object] = lambda record: None,
) -> Record:
    """Time every arm at every cell; a cell that fails for an arm says why and ends nothing.

    Args:
        resources: `micro_batch` sequences make a training batch here (0: the first arm's whole
            batch); backends, compilation and tuned configurations are as in training.
        tuned: the folder that `resources.tuned` is kept in.
        before: an earlier record, whose cells are kept where all arms have them.
        report: told the record after each cell, so that little is lost if this process ends.
    Raises:
        ValueError: the settings do not fit the arms, or `before` timed something else.
    """
    ask_for(resources.backends)
    data = arms[0].data
    batch = min(resources.micro_batch or data.batch, data.batch)
    cells = cells_of(spec, batch=batch, length=data.sequence_length)
    record, begun = _begin(experiment, arms, spec, device, resources), time.monotonic()
    rows = {} if before is None else kept_rows(before, record, cells)
    if before is not None and rows:
        record["rankable"] = record["rankable"] and before["rankable"]
        record["notes"] = list(dict.fromkeys([*before["notes"], *record["notes"]]))
        record["notes"].append(f"{len(rows)} of {len(cells)} cells are of {before['measured']}")
    parks = _must_park(arms, device)
    contenders = [
        Contender(arm, device, resources=resources, tuned=tuned, parks=parks) for arm in arms
    ]
    for cell in cells:
        if cell.label not in rows:
            times = _take_turns(contenders, cell, spec)
            rows[cell.label] = [
                _row(one.arm, cell, times, arms[0].name, record["peak"]) for one in contenders
            ]
            log.info("%s done after %.0f s", cell.label, time.monotonic() - begun)
        record["cells"] = [row for one in cells for row in rows.get(one.label, ())]
        if cell is cells[0]:
            record["arms"] = {
                one.arm.name: _headline(one.arm, row, record)
                for one, row in zip(contenders, rows[cell.label], strict=True)
            }
        for one in contenders:
            used = {} if before is None else before["arms"][one.arm.name]["backends"]
            record["arms"][one.arm.name]["backends"] = used | one.backends
        report(record)
    return record


def _must_park(arms: Sequence[ArmSpec], device: torch.device) -> bool:
    """Whether the arms' parameters together would take too much of a GPU from the one at work."""
    if device.type != "cuda":
        return False
    held = sum(4 * arm.counts["parameters"] for arm in arms)
    return held > HELD_SHARE * torch.cuda.get_device_properties(device).total_memory


def failures(record: Record) -> list[str]:
    """The cells that have no speed for another reason than memory."""
    return [
        f"{cell['arm']} at {cell['kind']} {cell['batch']} x {cell['length']}: {cell['state']}"
        for cell in record["cells"]
        if cell["state"] not in (OK, OUT_OF_MEMORY)
    ]


def _begin(
    experiment: str,
    arms: Sequence[ArmSpec],
    spec: ThroughputSpec,
    device: torch.device,
    resources: ResourceSpec,
) -> Record:
    precision, name = arms[0].train.precision, device_model(device)
    notes = []
    foreign = _foreign_bytes(device)
    if foreign > FOREIGN_BYTES:
        notes.append(
            f"another process held {foreign / 2**30:.1f} GiB of the device at the start: "
            "these speeds are not to be ranked"
        )
    if device.type != "cuda":
        notes.append("measured on a CPU, where speeds are noisy: read ratios, not numbers")
    if any(arm.data.sequence_length != arms[0].data.sequence_length for arm in arms):
        notes.append(f"arms differ in data.sequence_length; all are timed at {arms[0].name}'s")
    return {
        "experiment": experiment,
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": name,
        "devices": 1,
        "precision": precision,
        "compiled": compiles(resources, device),
        "graphs": resources.graphs and device.type == "cuda",
        "baseline": arms[0].name,
        "peak": _peak(spec, device, name, precision),
        "settings": asdict(spec),
        "timed": what_is_timed(arms),
        "resources": [resources.micro_batch, resources.backends, resources.tuned, resources.graphs],
        "environment": describe_environment(device),
        "rankable": foreign <= FOREIGN_BYTES,
        "notes": notes,
        "arms": {},
        "cells": [],
    }


def _peak(
    spec: ThroughputSpec, device: torch.device, name: str, precision: str
) -> dict[str, float | str]:
    if spec.peak_tflops:
        return {"tflops": spec.peak_tflops, "source": "given as throughput.peak_tflops"}
    stated = stated_peak(name, precision)
    if stated:
        return {"tflops": stated, "source": f"the data sheet's, {precision}"}
    return {"tflops": measured_peak(device, precision), "source": "a matrix product, measured"}


def _foreign_bytes(device: torch.device) -> int:
    """Memory of the device that this process does not hold, apart from the driver's own."""
    if device.type != "cuda":
        return 0
    torch.zeros(1, device=device)  # makes this process's context, which counts as used
    before_context = 2**29
    free, total = torch.cuda.mem_get_info(device)
    return max(total - free - torch.cuda.memory_reserved(device) - before_context, 0)


def _take_turns(
    contenders: Sequence[Contender], cell: Cell, spec: ThroughputSpec
) -> dict[str, _Times]:
    """Every arm's turns. The first, untimed one of each comes before all others' timed ones."""
    times = {one.arm.name: _Times() for one in contenders}
    for number in range(-1, spec.rounds):
        for one in contenders:
            mine = times[one.arm.name]
            if mine.state != OK:
                continue
            try:
                turn = one.turn(cell, spec)
            except Exception as error:  # whatever a kernel or a compiler raises: others go on
                mine.state = _why(error)
                log.warning("%s at %s: %s", one.arm.name, cell.label, mine.state)
            else:
                if number >= 0:
                    mine.turns.append(turn)
                continue
            one.release()  # out here the error is gone, and with it what its frames held
    return times


def _why(error: Exception) -> str:
    if is_out_of_memory(error):
        return OUT_OF_MEMORY
    first = (str(error).strip().splitlines() or [""])[0]
    return f"failed: {type(error).__name__}: {first}"[:300]


def _row(
    arm: ArmSpec, cell: Cell, times: dict[str, _Times], baseline: str, peak: dict[str, Any]
) -> dict[str, Any]:
    """One arm at one cell, as the record keeps it."""
    mine, base = times[arm.name], times[baseline]
    row: dict[str, Any] = {
        "arm": arm.name, "kind": cell.kind, "batch": cell.batch, "length": cell.length,
        "sweeps": list(cell.sweeps), "state": mine.state,
    }  # fmt: skip
    if mine.state != OK:
        return row
    tokens = cell.batch * (1 if cell.kind == "decode" else cell.length)

    def speeds(times: _Times, *, graphs: bool) -> list[list[float]]:
        return [[tokens / s for s in turn] for turn in times.seconds(graphs=graphs)]

    found = summarise(speeds(mine, graphs=mine.graphed))
    row |= {
        "tokens_per_second": found.median, "low": found.low, "high": found.high, "n": found.n,
        "rounds": found.rounds, "milliseconds": 1e3 * tokens / found.median,
        "peak_memory_gib": max(turn.peak_bytes for turn in mine.turns) / 2**30,
        "every_millisecond": [
            [round(1e3 * s, 4) for s in turn] for turn in mine.seconds(graphs=mine.graphed)
        ],
    }  # fmt: skip
    if base.state == OK:
        alike = mine.graphed and base.graphed  # else both kernel by kernel
        ratio = summarise_ratio(speeds(mine, graphs=alike), speeds(base, graphs=alike))
        row |= {"ratio": ratio.median, "ratio_low": ratio.low, "ratio_high": ratio.high}
    if cell.kind != "train":
        return row | _reading(mine)
    flops = TRAINING * sum(forward_flops(arm.model, cell.length).values())
    try:
        mfu = utilisation(flops * found.median, peak["tflops"], source=peak["source"])
    except OverPeak as error:
        kept = {k: row[k] for k in ("arm", "kind", "batch", "length", "sweeps")}
        return kept | {"state": f"refused: {error}"}
    return row | {"model_flops_per_token": flops, "mfu": mfu}


def _reading(times: _Times) -> dict[str, Any]:
    """What a row of reading or decoding has besides: bytes carried on, how it was launched."""
    found: dict[str, Any] = {"cache_bytes": times.turns[-1].cache_bytes}
    if times.graphed:
        launched = summarise([turn.launched for turn in times.turns])
        found["launched_milliseconds"] = 1e3 * launched.median
    elif why_not := next((turn.no_graph for turn in times.turns if turn.no_graph), ""):
        found["no_graph"] = why_not
    return found


def _headline(arm: ArmSpec, row: dict[str, Any], record: Record) -> dict[str, Any]:
    """What the record says of an arm first: training at the file's own batch."""
    parts = forward_flops(arm.model, row["length"])
    kept = {k: v for k, v in row.items() if k not in ("arm", "sweeps", "every_millisecond")}
    return {
        **kept,
        "device": record["device"],
        "layout": arm.layout,
        "parameters": arm.counts["parameters"],
        "forward_flops_per_token": sum(parts.values()),
        "forward_flops_by_part": parts,
        "state_elements": arm.counts["state_elements"],
        "sequential_steps": row["length"],
        "rankable": record["rankable"],
    }
