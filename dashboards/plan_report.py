"""A plan as a page to read: what its comparison confounds, at a glance, before anything runs."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import altair as alt
import jinja2

from arch_search.commands.plan import describe
from arch_search.confounds.branches import branch_scale
from arch_search.confounds.derived import MixerFacts, mixer_facts
from arch_search.errors import UsageError
from arch_search.plan_spec import ArmSpec, FindingSpec, Plan
from arch_search.spec import LayerSpec, ModelSpec
from arch_search.storage import Root, write_atomic
from arch_search.wording import shown_value
from dashboards.figures import to_svg
from dashboards.plan_figures import arms_chart, baseline_of, crossings, crossings_chart

HERE = Path(__file__).parent
MOST_MIXERS = 16  # rows of the table of mixers

LEVELS = {
    "warning": "Warnings: what differs besides the factors, or moves with them",
    "residue": "Residues: what follows from the factors and was not held equal",
    "limit": "Limits: what is equal in all arms and still bounds what they can show",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class MixerRow:
    """What comes with one mixer besides its equation, as text."""

    name: str
    parameters: str
    state: str
    recurrence: str
    decayed: str
    memory: str
    scale: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanReport:
    """Everything that the template shows."""

    name: str
    question: str
    facts: tuple[str, ...]
    findings: tuple[tuple[str, tuple[FindingSpec, ...]], ...]
    arms: tuple[tuple[str, ...], ...]
    mixers: tuple[MixerRow, ...]
    more_mixers: int
    figures: dict[str, str]
    notes: tuple[str, ...]
    source: str


def make_plan_report(plan: Plan, root: Root) -> PlanReport:
    """Gather and draw what a plan says.

    Raises:
        UsageError: a sweep, whose arms come while it runs.
    """
    if plan.sweep is not None:
        raise UsageError(
            f"{plan.name} is a sweep: it has no arms to show before it runs; submit it, then "
            f"arch-search report {plan.name}"
        )
    pairs = crossings(plan)
    charts: dict[str, alt.TopLevelMixin] = {"arms": arms_chart(plan)}
    if pairs:
        charts["crossings"] = crossings_chart(pairs)
    mixers = _mixers(plan.arms)
    return PlanReport(
        name=plan.name,
        question=plan.question or plan.name,
        facts=tuple(describe(plan, root)),
        findings=tuple(
            (title, found)
            for level, title in LEVELS.items()
            if (found := tuple(f for f in plan.findings if f.level == level))
        ),
        arms=_arm_rows(plan),
        mixers=mixers[:MOST_MIXERS],
        more_mixers=max(len(mixers) - MOST_MIXERS, 0),
        figures={name: _svg(name, chart) for name, chart in charts.items()},
        notes=plan.notes,
        source=plan.source,
    )


def write_plan_report(plan: Plan, root: Root, folder: Path) -> list[Path]:
    """Write report.md and its figures into a folder; returns what was written."""
    report = make_plan_report(plan, root)
    folder.mkdir(parents=True, exist_ok=True)
    files = {f"{name}.svg": svg for name, svg in report.figures.items()}
    files["report.md"] = _templates().get_template("plan.md.j2").render(report=report)
    for name, text in files.items():
        write_atomic(folder / name, text)
    return [folder / name for name in files]


def _arm_rows(plan: Plan) -> tuple[tuple[str, ...], ...]:
    base, rows = baseline_of(plan), []
    for arm in plan.arms:
        sizes = [
            _beside(arm.counts[name], base.counts[name], same=arm is base)
            for name in ("parameters", "state_elements", "forward_flops_per_token")
        ]
        rows.append((arm.name, f"`{arm.layout}`", *sizes))
    return tuple(rows)


def _beside(value: float, base: float, *, same: bool) -> str:
    if same or not base:
        return f"{value:,.0f}"
    return f"{value:,.0f} ({value / base - 1:+.1%})".replace("-", "−")


def _mixers(arms: Sequence[ArmSpec]) -> tuple[MixerRow, ...]:
    """One row for each mixer that stands in an arm, equal ones together."""
    layers: dict[str, tuple[LayerSpec, ArmSpec]] = {}
    for arm in arms:
        for layer in arm.model.layers:
            layers.setdefault(json.dumps([layer.kind, layer.options], sort_keys=True), (layer, arm))
    names = _names([layer for layer, _ in layers.values()])
    return tuple(
        _mixer_row(name, layer, arm.model, arm.data.sequence_length)
        for name, (layer, arm) in zip(names, layers.values(), strict=True)
    )


def _names(layers: Sequence[LayerSpec]) -> list[str]:
    """Each mixer by its kind, with the options in which it differs from others of the kind."""
    alike: dict[str, list[LayerSpec]] = defaultdict(list)
    for layer in layers:
        alike[layer.kind].append(layer)
    names = []
    for layer in layers:
        differ = [
            name
            for name, value in layer.options.items()
            if any(other.options.get(name) != value for other in alike[layer.kind])
        ]
        shown = ", ".join(f"{name} {shown_value(layer.options[name])}" for name in differ)
        names.append(f"{layer.kind} ({shown})" if shown else layer.kind)
    return names


def _mixer_row(name: str, layer: LayerSpec, model: ModelSpec, length: int) -> MixerRow:
    facts = mixer_facts(layer, width=model.width, depth=len(model.layers), length=length)
    grows = f" (grows; at {length:,} tokens)" if facts.grows else ""
    return MixerRow(
        name=name,
        parameters=f"{facts.parameters:,}",
        state=f"{facts.state_elements:,}{grows}",
        recurrence=_gain(facts),
        decayed="–" if facts.recurrence_decayed is None else shown_value(facts.recurrence_decayed),
        memory=_memory(facts),
        scale=f"{branch_scale(layer, model):.2g}",
    )


def _gain(facts: MixerFacts) -> str:
    if facts.recurrence_gain is None:
        return "–"
    return f"{facts.recurrence_gain:.2g} ({facts.recurrence_start})"


def _memory(facts: MixerFacts) -> str:
    if facts.memory is None:
        return "–"
    median, slowest = (
        "all" if math.isinf(tokens) else f"{tokens:,.0f}"
        for tokens in (facts.memory.median, facts.memory.slowest)
    )
    return f"{median}; {slowest} ({facts.memory.gate})"


def _svg(name: str, chart: alt.TopLevelMixin) -> str:
    return re.sub(r'(\bid="|url\(#)', rf"\g<1>{name}-", to_svg(chart))


def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
