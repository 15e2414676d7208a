"""What a plan will take: disk from its sizes, time from finished runs of the same models."""

import json
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from arch_search.plan_spec import ArmSpec, Plan
from arch_search.spec import RunSpec
from arch_search.storage import Root

BYTES_PER_PARAMETER = 12  # float32 weights and two moments in a checkpoint
SPEED = "throughput/tokens_per_second"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedCost:
    """Of all runs, finished ones included.

    seconds_per_run: of training alone, for each arm of which runs of its shape have finished on
    `device`, `measured_runs` in all.   seconds: of all runs in turn, if every arm is known.
    """

    disk_gib: float
    finished_runs: int
    seconds_per_run: dict[str, float]
    seconds: float | None
    measured_runs: int
    device: str


def expected_cost(plan: Plan, root: Root) -> ExpectedCost:
    """Look through every finished run under the root for those of the plan's own shapes."""
    parameters = {arm.name: arm.counts["parameters"] for arm in plan.arms}
    kept = plan.log.keep_checkpoints
    speeds, device = _speeds(plan, root)
    seconds = {
        arm.name: arm.train.tokens / median(speeds[_shape(arm)])
        for arm in plan.arms
        if _shape(arm) in speeds
    }
    known = len(seconds) == len(plan.arms)
    return ExpectedCost(
        disk_gib=sum(parameters[run.arm] for run in plan.runs) * BYTES_PER_PARAMETER * kept / 2**30,
        finished_runs=sum(root.run(run.hash).result() is not None for run in plan.runs),
        seconds_per_run=seconds,
        seconds=sum(seconds[run.arm] for run in plan.runs) if known else None,
        measured_runs=sum(map(len, speeds.values())),
        device=device,
    )


def _speeds(plan: Plan, root: Root) -> tuple[dict[str, list[float]], str]:
    """Tokens a second by shape, on the one device that most runs of these shapes used."""
    wanted = {_shape(arm) for arm in plan.arms}
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for folder in root.runs():
        result = folder.result()
        if result is None or not (speed := result["metrics"].get(SPEED)):
            continue
        if (shape := _shape(folder.spec())) in wanted:
            found[result["environment"].get("device", "")][shape].append(float(speed))
    if not found:
        return {}, ""
    device = max(found, key=lambda name: sum(map(len, found[name].values())))
    return dict(found[device]), device


def _shape(spec: ArmSpec | RunSpec) -> str:
    """What a step's time depends on: the layers in any order, sizes, batch and precision."""
    layers = Counter(json.dumps(asdict(layer), sort_keys=True) for layer in spec.model.layers)
    sizes: dict[str, Any] = {
        "width": spec.model.width,
        "vocabulary": spec.model.vocabulary,
        "length": spec.data.sequence_length,
        "batch": spec.data.batch,
        "precision": spec.train.precision,
    }
    return json.dumps([sorted(layers.items()), sizes])


def cost_sentences(plan: Plan, cost: ExpectedCost) -> list[str]:
    """Disk, what has finished already, and the time of training."""
    kept = plan.log.keep_checkpoints
    said = [f"Disk: at most {cost.disk_gib:.2f} GiB of checkpoints ({kept} kept a run)."]
    if cost.finished_runs:
        said.append(f"{cost.finished_runs} of these runs are finished already and not run again.")
    seconds = cost.seconds_per_run.values()
    if not seconds:
        return [*said, "Time: not known before a run of one of these models has finished here."]
    shortest, longest = f"{min(seconds):,.0f}", f"{max(seconds):,.0f}"
    each = shortest if shortest == longest else f"{shortest} to {longest}"
    unknown = len(plan.arms) - len(seconds)
    all_ = f", {cost.seconds / 60:,.1f} minutes for all in turn" if cost.seconds else ""
    without = f"; not known for {unknown} of {len(plan.arms)} arms" if unknown else ""
    said.append(
        f"Time: about {each} s of training a run{all_}{without}, by {cost.measured_runs} finished "
        f"runs of the same models on {cost.device or 'an unnamed device'}; evaluation not counted."
    )
    return said
