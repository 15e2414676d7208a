"""What MLflow is told of a run beside its curves: parameters, tags, final metrics."""

import re
from typing import Any

from arch_search.plan_spec import Plan, PlannedRun
from arch_search.storage import Root, RunFolder

VALUE_LIMIT = 4_000  # characters; MLflow cuts longer ones with a warning


def parameters(plan: Plan, planned: PlannedRun) -> dict[str, str]:
    """The short layout, the arm, the seeds and the level on each axis."""
    arm = next(arm for arm in plan.arms if arm.name == planned.arm)
    spec = planned.spec
    fixed = {
        "arm": arm.name,
        "seed": planned.seed,
        "init_seed": spec.init_seed,
        "data_seed": spec.data_seed,
        "layout": arm.layout,
    }
    return {k: _short(v) for k, v in {**arm.factors, **fixed}.items()}


def first_tags(root: Root, plan: Plan, planned: PlannedRun) -> dict[str, str]:
    """Tags that are known before the run starts; the first two find it again in MLflow."""
    arm = next(arm for arm in plan.arms if arm.name == planned.arm)
    return {
        "arch_search.root": root.identity,
        "arch_search.run": planned.hash,
        "arch_search.kind": "run",
        "content_hash": planned.hash,
        "code_hash": planned.spec.code,
        "data_manifest": planned.spec.data.manifest,
        "arm": planned.arm,
        "baseline": str(arm.is_baseline).lower(),
        "study": plan.name,
    }


def last_tags(run: RunFolder, state: str, reason: str) -> dict[str, str]:
    """How it ended, and what the result says of its data and surroundings."""
    result = run.result() or {}
    tags = {
        "ended": f"{state}: {reason}" if reason else state,
        "attempts": str(len(run.attempts())),
    }
    tags |= {f"stream/{k}": v for k, v in result.get("stream", {}).items()}
    tags |= _flat(result.get("environment", {}))
    return {k: _short(v) for k, v in tags.items()}


def final_metrics(plan: Plan, run: RunFolder) -> dict[str, float]:
    """Headline numbers; what an evaluation measured stands before training's own estimate."""
    metrics = dict((run.result() or {}).get("metrics", {}))
    for evaluation in plan.evaluations:
        metrics |= (run.evaluation(evaluation) or {}).get("metrics", {})
    return {k: float(v) for k, v in metrics.items()}


def metric_name(name: str) -> str:
    """MLflow takes letters, digits, and '_-./ :' in a metric's name."""
    return re.sub(r"[^\w\-./ :]", "_", name)


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}/")
        elif value is not None:
            flat[prefix + key] = value
    return flat


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= VALUE_LIMIT else text[: VALUE_LIMIT - 1] + "…"
