"""What an interrupted measurement keeps: cells of the same arms, code, device and settings.

A cell is measured by one process for all arms, so that its ratios stand whatever process measured
the next.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from arch_search.plan_spec import ArmSpec
from arch_search.spec import content_hash
from arch_search.throughput.record import OK, OUT_OF_MEMORY, Record
from arch_search.throughput.settings import Cell

CELLS = frozenset({"tokens", "contexts", "batches", "cells", "prefill", "decode"})  # may change


def what_is_timed(arms: Sequence[ArmSpec]) -> dict[str, str]:
    """A hash of each arm's model and training, by the arm's name."""
    return {arm.name: content_hash([asdict(arm.model), asdict(arm.train)]) for arm in arms}


def kept_rows(
    before: Record, now: Record, cells: Sequence[Cell]
) -> dict[str, list[dict[str, Any]]]:
    """The rows of an earlier record by the label of their cell; those that failed are left out.

    Args:
        now: the record that is begun, without a cell yet.
    Raises:
        ValueError: both do not time the same; says what differs.
    """
    parts = zip(_circumstances(before).items(), _circumstances(now).values(), strict=True)
    if different := [name for (name, old), new in parts if old != new]:
        raise ValueError(
            f"the record of {before['measured']} cannot be gone on with: other "
            f"{', '.join(different)}; measure anew, or under another name"
        )
    rows: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        at = (cell.kind, cell.batch, cell.length)
        found = [r for r in before["cells"] if (r["kind"], r["batch"], r["length"]) == at]
        if found and all(row["state"] in (OK, OUT_OF_MEMORY) for row in found):
            rows[cell.label] = [row | {"sweeps": list(cell.sweeps)} for row in found]
    return rows


def _circumstances(record: Record) -> dict[str, Any]:
    settings, environment = record["settings"], record["environment"]
    return {
        "arms": list(record.get("timed", {}).items()),
        "device": record["device"],
        "precision": record["precision"],
        "compilation": record["compiled"],
        "backends or sequences at once": record.get("resources"),
        "settings": {k: v for k, v in settings.items() if k not in CELLS},
        "code": [environment["git_commit"], environment["diff_hash"]],
        "versions of packages": environment["versions"],
    }
