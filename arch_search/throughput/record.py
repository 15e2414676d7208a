"""What the lane leaves: `<root>/throughput/<experiment>.json`. No torch, so that all may read it.

{"experiment", "measured", "device", "precision", "peak", "settings", "notes", "rankable",
 "arms": {name: {"tokens_per_second", "low", "high", "n", "batch", "length", "device", ...}},
 "cells": [{"arm", "kind", "batch", "length", "state", "tokens_per_second", ...}]}

Speeds are of one device and of whole training steps: forward, backward, clipping, optimiser.
"""

from pathlib import Path
from typing import Any

from arch_search.errors import UsageError
from arch_search.files import dump_json, read_object, write_atomic
from arch_search.storage import Root

Record = dict[str, Any]
OK, OUT_OF_MEMORY = "ok", "out of memory"


def record_path(root: Root, experiment: str) -> Path:
    """Where the record of an experiment stands. Raises UsageError for what cannot be a name."""
    return root.path / "throughput" / f"{root.experiment(experiment).name}.json"


def write_record(root: Root, record: Record) -> Path:
    """Put a record in the place of the one before."""
    path = record_path(root, record["experiment"])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, dump_json(record))
    return path


SPEEDS: dict[str, type] = {"arms": dict}  # all that those need who only compare speeds
WHOLE: dict[str, type] = SPEEDS | {
    "experiment": str, "measured": str, "device": str, "precision": str, "compiled": bool,
    "baseline": str, "peak": dict, "settings": dict, "environment": dict, "notes": list,
    "rankable": bool, "cells": list,
}  # fmt: skip


def read_record(root: Root, experiment: str, *, whole: bool = False) -> Record | None:
    """The newest record of an experiment; None before its throughput was measured.

    Args:
        whole: all that the lane leaves must be there, to go on with it or to draw it again.
    Raises:
        UsageError: what stands there is no such record.
    """
    return read_object(record_path(root, experiment), WHOLE if whole else SPEEDS)


def require_record(root: Root, experiment: str) -> Record:
    """As `read_record` of a whole one. Raises UsageError where there is none."""
    found = read_record(root, experiment, whole=True)
    if found is None:
        raise UsageError(
            f"no throughput of {experiment!r} under {root.path}: measure it first with "
            "arch-search bench throughput FILE"
        )
    return found


def markdown(record: Record) -> str:
    """The record as tables: training at the file's own batch, then every other cell."""
    arms = record["arms"]
    first = next(iter(arms.values()), {})
    compiled = ", compiled" if record["compiled"] else ""
    compiled += ", gradients by CUDA graphs" if record.get("graphs") else ""
    lines = [
        f"# Throughput of {record['experiment']}", "",
        f"{record['device']}, {record['precision']}{compiled}, {_versions(record)}. "
        f"Whole training steps of {first.get('batch')} sequences of {first.get('length')} tokens; "
        "medians with 95 % bootstrap intervals over rounds in which the arms took turns. The ratio "
        f"is to {record['baseline']}, round by round. MFU: model FLOPs (forward and twice as many "
        f"backward, no recomputation) of {record['peak']['tflops']:.4g} TFLOP/s "
        f"({record['peak']['source']}).", "",
        "| arm | tokens/s | ratio | n | peak GiB | MFLOP/token, forward | MFU | by part |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    lines += [_arm_line(name, arm) for name, arm in arms.items()]
    for kind, title in TITLES.items():
        lines += _cell_table(record, kind, title)
    if any("launched_milliseconds" in cell for cell in record["cells"]):
        lines += ["", AS_GRAPHS]
    lines += ["", *(f"- {note}" for note in record["notes"])] if record["notes"] else []
    return "\n".join(lines) + "\n"


AS_GRAPHS = (
    "Reading and decoding are timed as CUDA graphs, launched at once; in brackets also as PyTorch "
    "launches them, kernel by kernel, where the host may take longer than the device."
)
TITLES = {
    "train": "Training by batch and length, tokens/s (ratio; peak GiB)",
    "prefill": "Reading a prompt, tokens/s (bytes carried on)",
    "decode": "Decoding, ms a token (bytes carried on)",
}


def _arm_line(name: str, arm: dict[str, Any]) -> str:
    parts = ", ".join(f"{k} {v / 1e6:.4g}" for k, v in arm["forward_flops_by_part"].items())
    flops = f"{arm['forward_flops_per_token'] / 1e6:.5g}"
    if arm["state"] != OK:
        return f"| {name} | {arm['state']} | | | | {flops} | | {parts} |"
    return (
        f"| {name} | {interval(arm, 'tokens_per_second', ',.0f')} | {_ratio(arm)} | {arm['n']} "
        f"| {arm['peak_memory_gib']:.2f} | {flops} | {arm['mfu']:.1%} | {parts} |"
    )


def _cell_table(record: Record, kind: str, title: str) -> list[str]:
    cells = [cell for cell in record["cells"] if cell["kind"] == kind]
    if not cells:
        return []
    columns = list(dict.fromkeys((cell["batch"], cell["length"]) for cell in cells))
    found = {(cell["arm"], cell["batch"], cell["length"]): cell for cell in cells}
    lines = [
        "", f"## {title}", "",
        "| arm | " + " | ".join(f"{batch} x {length}" for batch, length in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]  # fmt: skip
    for arm in record["arms"]:
        shown = (found.get((arm, *column)) for column in columns)
        lines.append(f"| {arm} | " + " | ".join(_cell(cell) for cell in shown) + " |")
    return lines


def _cell(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return ""
    if cell["state"] != OK:
        return cell["state"]
    if cell["kind"] != "train":
        speed = f"{cell['tokens_per_second']:,.0f}"
        if cell["kind"] == "decode":
            speed = f"{cell['milliseconds']:.3g}"
        return f"{speed} ({_launches(cell)}{cell['cache_bytes']:,} B)"
    ratio = f"{cell['ratio']:.3f}; " if cell.get("ratio") else ""
    return f"{cell['tokens_per_second']:,.0f} ({ratio}{cell['peak_memory_gib']:.1f})"


def _launches(cell: dict[str, Any]) -> str:
    """How a forward pass was launched on a GPU, where there is something to say."""
    if "no_graph" in cell:
        return "kernel by kernel; "
    if "launched_milliseconds" in cell:
        return f"{cell['launched_milliseconds']:.3g} ms kernel by kernel; "
    return ""


def interval(row: dict[str, Any], name: str, form: str) -> str:
    """'median [low, high]'."""
    return f"{row[name]:{form}} [{row['low']:{form}}, {row['high']:{form}}]"


def _ratio(row: dict[str, Any]) -> str:
    if row.get("ratio") is None:
        return ""
    return f"{row['ratio']:.3f} [{row['ratio_low']:.3f}, {row['ratio_high']:.3f}]"


def _versions(record: Record) -> str:
    shown = ("torch", "triton", "flash-linear-attention", "mamba-ssm", "causal-conv1d")
    versions = record["environment"]["versions"]
    return ", ".join(f"{name} {versions[name]}" for name in shown if name in versions)
