"""What was settled before results were there, with the time, kept over later plans of one name."""

import json
from collections.abc import Iterator
from dataclasses import replace

from arch_search.errors import UsageError
from arch_search.plan_spec import DeclarationSpec, Plan
from arch_search.storage import Root


def with_declarations(plan: Plan, root: Root) -> Plan:
    """The plan with each declaration dated: as in the plan in force if it stands there, else now.

    One made anew once an arm other than the baseline has results is marked `after_results`.
    """
    before = _plan_in_force(plan.name, root)
    known = {(d.what, d.value): d for d in before.declarations} if before else {}
    late = _has_results(plan, root) or (before is not None and _has_results(before, root))
    declared = tuple(
        known.get(
            (what, value),
            DeclarationSpec(what=what, value=value, time=plan.created, after_results=late),
        )
        for what, value in _settled(plan)
    )
    return replace(plan, declarations=declared)


def late_declarations(plan: Plan) -> tuple[str, ...]:
    """One sentence on what was settled only after results were there; none if nothing was."""
    late = [d for d in plan.declarations if d.after_results]
    if not late:
        return ()
    said = [f"{d.what} (on {d.time[:10]})" for d in late]
    if len(plan.declarations) == len(late) > 1:  # as in a second submission over runs of a first
        said = [f"all that is asked here (on {', '.join(sorted({d.time[:10] for d in late}))})"]
    return (f"Declared when results were there already: {', '.join(said)}. Read these as found.",)


def _settled(plan: Plan) -> Iterator[tuple[str, str]]:
    yield "primary metric", plan.primary.metric
    effect = plan.primary.smallest_effect
    yield "smallest effect", "none" if effect is None else f"{effect:.6g}"
    yield "stopping rule", plan.stopping_rule
    for contrast in plan.contrasts:
        yield f"contrast {contrast.name}", json.dumps(contrast.weights, sort_keys=True)
    for seed in dict.fromkeys(run.seed for run in plan.runs):
        spec = next(run.spec for run in plan.runs if run.seed == seed)
        yield f"seed {seed}", f"init {spec.init_seed}, data {spec.data_seed}"
    for arm in plan.arms:
        yield f"arm {arm.name}", arm.layout


def _plan_in_force(name: str, root: Root) -> Plan | None:
    try:
        return root.experiment(name).plan()
    except UsageError:  # none yet, or of another version
        return None


def _has_results(plan: Plan, root: Root) -> bool:
    compared = {arm.name for arm in plan.arms if not arm.is_baseline}
    return any(root.run(r.hash).result() is not None for r in plan.runs if r.arm in compared)
