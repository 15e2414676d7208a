"""Did arms start alike where they should? From what each run recorded before its first step."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from arch_search.records import Experiment, RunRecord
from arch_search.spec import ModelSpec, RunSpec, content_hash

_NOTABLE = 2.0  # a branch this many times larger or smaller at the start is worth a sentence


def unequal_starts(runs: Sequence[RunRecord]) -> str:
    """A parameter that two runs of one init seed share but did not start alike; empty if none.

    Shared is what has the same place in models of one width, depth and vocabulary, and stands in a
    layer that both describe alike.
    """
    seen: dict[tuple[int, str, str], tuple[str, RunRecord]] = {}
    for run in runs:
        starts = _starts(run)
        parts = _parts(run.planned.spec)
        for name, value in starts.items():
            key = (run.planned.spec.init_seed, name, parts[_part(name)])
            first, other = seen.setdefault(key, (value, run))
            if first != value:
                return (
                    f"{name} started differently in {other.arm.name}/{other.planned.seed} and "
                    f"{run.arm.name}/{run.planned.seed}, though both have init seed "
                    f"{run.planned.spec.init_seed} and the same layer there; run the older of the "
                    "two again."
                )
    return ""


def shared_start_sentences(runs: Sequence[RunRecord]) -> list[str]:
    """How many parameters were compared at the start, where any were recorded."""
    recorded = [run for run in runs if _starts(run)]
    keys: dict[tuple[int, str, str], int] = {}
    for run in recorded:
        parts = _parts(run.planned.spec)
        for name in _starts(run):
            key = (run.planned.spec.init_seed, name, parts[_part(name)])
            keys[key] = keys.get(key, 0) + 1
    shared = sum(count > 1 for count in keys.values())
    if not shared:
        return []
    return [
        "What arms of one init seed share started bit-equal "
        f"({shared:,} parameter tensors compared by hash)."
    ]


def branch_sentences(experiment: Experiment) -> Iterator[str]:
    """Where a replaced layer's branch starts much larger or smaller than the baseline's there."""
    base = _branches(experiment, experiment.baseline.name)
    for arm in experiment.plan.arms:
        own = _branches(experiment, arm.name)
        ratios = {
            name: own[name] / base[name]
            for name in (f"layers.{i}.mixer" for i in arm.replaced)
            if base.get(name) and own.get(name)
        }
        far = {n: r for n, r in ratios.items() if not 1 / _NOTABLE < r < _NOTABLE}
        if far:
            listed = ", ".join(f"{ratio:.2g} times in {name}" for name, ratio in far.items())
            yield (
                f"{arm.name}: before the first step the replaced branches are {listed} as large as "
                "the baseline's. Equal seeds do not make that fair."
            )


def _branches(experiment: Experiment, arm: str) -> dict[str, float]:
    """Each branch's scale at step 0, the median over seeds."""
    values: dict[str, list[float]] = {}
    for run in experiment.of_arm(arm):
        for name, scale in (run.result or {}).get("branch_scales", {}).items():
            values.setdefault(name, []).append(float(scale))
    return {name: median(scales) for name, scales in values.items()}


def _starts(run: RunRecord) -> Mapping[str, str]:
    return (run.result or {}).get("starts", {})


def _part(name: str) -> str:
    """'layers.3' for a layer's parameter, else ''."""
    pieces = name.split(".")
    return ".".join(pieces[:2]) if pieces[0] == "layers" else ""


def _parts(spec: RunSpec) -> dict[str, str]:
    """What decides the start of each layer, and of what is outside the layers."""
    outside = content_hash(_outside(spec.model))
    layers = enumerate(spec.model.layers)
    return {"": outside} | {
        f"layers.{i}": content_hash([outside, asdict(layer)]) for i, layer in layers
    }


def _outside(model: ModelSpec) -> dict[str, Any]:
    return {"width": model.width, "depth": len(model.layers), "vocabulary": model.vocabulary,
            "tied": model.tie_embeddings}  # fmt: skip
