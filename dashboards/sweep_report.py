"""A sweep as a page to read: its front with intervals, its cost, what decided in it."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import altair as alt
import jinja2
from markupsafe import Markup

from arch_search.commands.compare import number
from arch_search.commands.sweep import read_sweep
from arch_search.metric_names import label
from arch_search.plan_spec import Plan
from arch_search.search.outcome import (
    change_in_words,
    front,
    rank_agreement,
    second_looks,
    tokens_in_full,
    tokens_used,
    values_of,
)
from arch_search.search.trials import Ledger, Trial
from arch_search.storage import Root
from arch_search.sweep_spec import SweepSpec
from arch_search.throughput.record import OK, interval, read_record
from arch_search.wording import counted
from dashboards import sweep_figures
from dashboards.figures import to_svg
from dashboards.report import keep_figures, write_files

HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table as text; `note` says what its numbers mean."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepReport:
    """Everything that the two templates show."""

    name: str
    question: str
    facts: str
    found: tuple[str, ...]
    tables: tuple[Table, ...]
    figures: tuple[tuple[str, str, str], ...]  # name, caption, SVG
    source: str


def make_sweep_report(root: Root, plan: Plan) -> SweepReport:
    """Read a sweep's record and draw it, however far it has come."""
    assert plan.sweep is not None
    sweep, ledger = plan.sweep, read_sweep(root, plan)
    speeds = (read_record(root, plan.name) or {}).get("arms", {})
    return SweepReport(
        name=plan.name,
        question=plan.question or plan.name,
        facts=_facts(sweep, ledger),
        found=tuple(_found(sweep, ledger.trials)),
        tables=(
            _front_table(sweep, ledger.trials, speeds),
            _agreement_table(sweep, ledger.trials),
            _trial_table(sweep, ledger.trials),
        ),
        figures=tuple(_figures(sweep, ledger.trials)),
        source=plan.source,
    )


def sweep_files(report: SweepReport, *, only: Sequence[str] = ()) -> dict[str, str]:
    """What is written, by file name: report.html, report.md and a figure each.

    Args:
        only: these figures, and the Markdown that shows them.
    """
    drawn = {name: svg for name, _, svg in report.figures}
    if only:
        kept = keep_figures(drawn, only)
        report = replace(report, figures=tuple(f for f in report.figures if f[0] in kept))
        markdown = _render(report, "sweep.md.j2", autoescape=False)
        return {f"{name}.svg": svg for name, svg in kept.items()} | {"report.md": markdown}
    return {
        **{f"{name}.svg": svg for name, svg in drawn.items()},
        "report.html": _render(report, "sweep.html.j2", autoescape=True),
        "report.md": _render(report, "sweep.md.j2", autoescape=False),
    }


def write_sweep_report(report: SweepReport, folder: Path) -> list[Path]:
    """Write report.html, report.md and the figures beside them; returns what was written."""
    return write_files(sweep_files(report), folder)


def sweep_headline(root: Root, plan: Plan) -> dict[str, float]:
    """The numbers of a report for MLflow's summary run."""
    assert plan.sweep is not None
    sweep, trials = plan.sweep, read_sweep(root, plan).trials
    numbers: dict[str, float] = {}
    last = len(sweep.rungs) - 1
    for trial in front(sweep, trials):
        for name, value in zip(sweep.objectives, values_of(sweep, trial, last), strict=True):
            numbers[f"{name}/front/{trial.name}"] = value
    for one in second_looks(sweep, trials):
        numbers[f"{one.metric}/fresh_mean/t{one.number:04d}"] = one.mean
    if full := tokens_in_full(sweep, trials):
        numbers["sweep/token_share"] = tokens_used(sweep, trials) / full
    for state in ("COMPLETE", "PRUNED", "FAIL"):
        own = [t for t in trials if not t.is_taken]
        numbers[f"sweep/{state.lower()}"] = float(sum(t.state == state for t in own))
    return numbers


def _facts(sweep: SweepSpec, ledger: Ledger) -> str:
    own = [trial for trial in ledger.trials if not trial.is_taken]
    states = ", ".join(
        f"{sum(t.state == s for t in own)} {s}" for s in ("COMPLETE", "PRUNED", "FAIL")
    )
    if taken := len(ledger.trials) - len(own):
        states += f", {taken} results taken from {', '.join(sorted(ledger.took))}"
    over = ledger.end or "the search is not over"
    return f"{over}; {states}; proposed by {sweep.sampler.name}, seed {sweep.seed}"


def _found(sweep: SweepSpec, trials: Sequence[Trial]) -> list[str]:
    """What a reader should know first."""
    sentences = []
    own = [trial for trial in trials if not trial.is_taken]
    if own:
        used, full = tokens_used(sweep, own), tokens_in_full(sweep, own)
        sentences.append(
            f"The search trained on {used:,} tokens, {100 * used / full:.0f} % of what "
            f"{counted(len(own), 'layout')} would have cost in full."
        )
    best = front(sweep, trials)
    sentences.append(
        f"On the front: {counted(len(best), 'layout')} ({', '.join(t.name for t in best)})."
        if best
        else "No layout has seen the whole budget within all limits yet."
    )
    looks = second_looks(sweep, trials)
    for metric in dict.fromkeys(one.metric for one in looks):
        lost = [one.lost for one in looks if one.metric == metric]
        sentences.append(
            f"Winner's curse: trained anew from seeds that chose nothing, "
            f"{counted(len(lost), 'layout')} of the front came out {change_in_words(lost)} on "
            f"average, in {label(metric)}, than the values they were chosen by. Rank by the fresh "
            "means."
        )
    failed = [t for t in trials if t.state == "FAIL"]
    sentences += [f"{t.name} failed at {t.reason}." for t in failed[:5]]
    return sentences


def _front_table(
    sweep: SweepSpec, trials: Sequence[Trial], speeds: Mapping[str, dict[str, Any]]
) -> Table:
    looks = {(one.number, one.metric): one for one in second_looks(sweep, trials)}
    last = len(sweep.rungs) - 1
    trained = [name for name in sweep.objectives if not name.startswith("count/")]
    rows = []
    for trial in front(sweep, trials):
        again = [looks.get((trial.number, name)) for name in trained]
        fresh = [
            f"{one.mean:.4f} [{one.low:.4f}, {one.high:.4f}]" if one and math.isfinite(one.low)
            else (f"{one.mean:.4f}" if one else "–")
            for one in again
        ]  # fmt: skip
        lost = [number(one.lost if one else None, signed=True) for one in again]
        values = [f"{value:,.0f}" if value >= 1e4 else f"{value:,.4f}".rstrip("0").rstrip(".")
                  for value in values_of(sweep, trial, last)]  # fmt: skip
        rows.append((trial.name, trial.arm.layout, _options(trial),
                     f"{trial.arm.counts['parameters']:,.0f}", *values, *fresh, *lost,
                     _speed(speeds.get(trial.name))))  # fmt: skip
    shown = [label(name) for name in sweep.objectives]
    shown += [f"fresh mean of {label(name)}" for name in trained]
    shown += [f"lost in {label(name)}" for name in trained]
    columns = ("trial", "layout", "options", "parameters", *shown, "tokens/s, measured apart")
    note = (
        "Values by which the front was found, then means over fresh seeds with 95 % t intervals; "
        "lost: how much worse the fresh mean is. Speeds are those of the throughput lane "
        "(arch-search bench throughput FILE), never of the search's own runs."
    )
    return Table(title="The front", columns=columns, rows=tuple(rows), note=note)


def _speed(arm: dict[str, Any] | None) -> str:
    if arm is None:
        return "–"
    return interval(arm, "tokens_per_second", ",.0f") if arm["state"] == OK else arm["state"]


def _agreement_table(sweep: SweepSpec, trials: Sequence[Trial]) -> Table:
    rows = tuple(
        (label(one.metric), f"{sweep.rungs[one.rung]:.0%}", f"{sweep.rungs[one.larger]:.0%}",
         _tau(one.tau), str(one.n), _tau(one.tau_immune), str(one.n_immune))
        for one in rank_agreement(sweep, trials)
    )  # fmt: skip
    note = (
        "Kendall's tau between a trial's places at two budgets: 1 if the smaller ranks as the "
        "larger, 0 if it says nothing. Those that were let on are alike, which lowers it; the "
        "ones never pruned were chosen by nothing."
    )
    columns = ("objective", "smaller", "larger", "tau", "n", "tau, never pruned", "n")
    return Table(
        title="Do small budgets rank as large ones?", columns=columns, rows=rows, note=note
    )


def _tau(value: float) -> str:
    return f"{value:+.2f}" if math.isfinite(value) else "too few"


def _trial_table(sweep: SweepSpec, trials: Sequence[Trial]) -> Table:
    rows = tuple(
        (trial.name, trial.arm.layout, _options(trial), trial.state, trial.reason or "–",
         "yes" if trial.immune else "", trial.origin)
        for trial in trials
    )  # fmt: skip
    columns = (
        "trial",
        "layout",
        "options",
        "state",
        "where it ended",
        "never pruned",
        "proposed by",
    )
    return Table(title="Every trial", columns=columns, rows=rows)


def _options(trial: Trial) -> str:
    shown = {k: v for k, v in trial.params.items() if not k.startswith(("layer.", "where."))}
    return ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in shown.items())


def _figures(sweep: SweepSpec, trials: Sequence[Trial]) -> list[tuple[str, str, str]]:
    table = sweep_figures.score_table(sweep, trials)
    if table.empty:
        return []
    drawn: list[tuple[str, str, alt.TopLevelMixin | None]] = [
        ("front", _FRONT, sweep_figures.front_chart(sweep, table)),
        ("rungs", _RUNGS, sweep_figures.rung_chart(sweep, table)),
        ("importances", _IMPORTANCES, sweep_figures.importance_chart(sweep, trials)),
        ("slices", _SLICES, sweep_figures.slice_chart(sweep, trials)),
        ("parallel", _PARALLEL, sweep_figures.parallel_chart(sweep, trials)),
    ]
    return [(name, caption, _svg(name, chart)) for name, caption, chart in drawn if chart]


_FRONT = (
    "Each trial where it ended: complete ones at the whole budget, pruned ones at their rung's "
    "score, which is no full result. Filled and joined: the front."
)
_RUNGS = "A line a trial, from rung to rung; each score follows a decay of the learning rate."
_IMPORTANCES = (
    "Share of the first rung's variance that a parameter explains by itself, adjusted for its "
    "levels. At the first rung nobody had been pruned and all had one budget."
)
_SLICES = "Each parameter against the score at the first rung, where all trials stand."
_PARALLEL = "A line a trial through its parameters to its scores at the first rung."


def _svg(name: str, chart: alt.TopLevelMixin) -> str:
    return re.sub(r'(\bid="|url\(#)', rf"\g<1>{name}-", to_svg(chart))


def _render(report: SweepReport, template: str, *, autoescape: bool) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    drawn = [(name, caption, Markup(svg)) for name, caption, svg in report.figures]
    return environment.get_template(template).render(report=report, drawn=drawn)
