"""One experiment as a page to read: one HTML file, Markdown, and the figures as SVG."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import altair as alt
import jinja2
import pandas as pd
from markupsafe import Markup

from arch_search.commands.compare import count_text, interval, number
from arch_search.compare import Comparison, compare_experiment, metric_table
from arch_search.findings import ArmOutcome
from arch_search.metric_names import label
from arch_search.records import (
    Experiment,
    curves,
    read_experiment,
    seconds,
    table,
)
from arch_search.storage import Root, write_atomic
from dashboards import figures
from dashboards.controls import how_controlled, recorded_environment, residues

HERE = Path(__file__).parent
SPEED, MEMORY = "throughput/tokens_per_second", "memory/peak_gib"


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """An SVG with its caption; `name` is its file's name without the ending."""

    name: str
    caption: str
    svg: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmRow:
    """An arm's line in the tables, as text."""

    arm: str
    layout: str
    parameters: str
    state: str
    n: str
    mean: str
    mean_interval: str
    difference: str
    difference_interval: str
    p: str
    permutation_p: str
    resolvable: str
    verdict: str
    seconds: str
    speed: str
    memory: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Everything that the two templates show."""

    comparison: Comparison
    metric_label: str
    created: str
    counts: str
    rows: tuple[ArmRow, ...]
    figures: Mapping[str, Figure]
    controlled: tuple[str, ...]
    notes: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    source: str


def make_report(experiment: Experiment, *, metric: str | None = None) -> Report:
    """Compare the arms and draw what their records hold.

    Raises:
        UsageError: the runs are not comparable; a report is not written over that.
    """
    comparison = compare_experiment(experiment, metric=metric)
    finished = experiment.trained
    drawn = _figures(experiment, comparison)
    total = sum(seconds(run) or 0 for run in finished)
    return Report(
        comparison=comparison,
        metric_label=label(comparison.metric),
        created=experiment.plan.created[:16].replace("T", " "),
        counts=f"{len(experiment.plan.arms)} arms, {len(finished)} of {len(experiment.runs)} runs "
        f"finished, {_duration(total)} of training and evaluation",
        rows=tuple(_row(experiment, outcome) for outcome in comparison.arms),
        figures={figure.name: figure for figure in drawn},
        controlled=how_controlled(experiment, comparison, finished),
        notes=(*experiment.plan.notes, *residues(experiment), *comparison.control.warnings),
        environment=recorded_environment(finished),
        source=experiment.plan.source,
    )


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write report.html, report.md and the figures beside them; returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {f"{figure.name}.svg": figure.svg for figure in report.figures.values()}
    files["report.html"] = to_html(report)
    files["report.md"] = to_markdown(report)
    for name, text in files.items():
        write_atomic(folder / name, text)
    return [folder / name for name in files]


def refresh_report(name: str, root: Root) -> Path:
    """Write the report anew if a run or an evaluation came in since; returns the page's path.

    Raises:
        UsageError: no such experiment, nothing to compare yet, or runs that are not comparable.
    """
    experiment = read_experiment(name, root)
    page = experiment.folder.report / "report.html"
    sources = [experiment.folder.path / "plan.json"]
    for run in experiment.runs:
        sources += [run.folder.path / "result.json", *run.folder.path.glob("evaluations/*.json")]
        sources += run.folder.path.glob("attempts/*/end.json")
    newest = max(path.stat().st_mtime for path in sources if path.exists())
    if not page.exists() or page.stat().st_mtime < newest:
        write_report(make_report(experiment), page.parent)
    return page


def headline(comparison: Comparison) -> dict[str, float]:
    """The numbers of a report: each arm's mean, and its difference to the baseline.

    The names begin with the metric's, so that MLflow lists them after the runs' own charts.
    """
    numbers = {}
    for outcome in comparison.arms:
        if outcome.mean is not None:
            numbers[f"{comparison.metric}/mean/{outcome.arm}"] = outcome.mean
        if outcome.difference is not None:
            numbers[f"{comparison.metric}/difference/{outcome.arm}"] = outcome.difference
    return numbers


def to_html(report: Report) -> str:
    """One self-contained page: no script, no request to anywhere."""
    drawn = {name: Markup(figure.svg) for name, figure in report.figures.items()}
    template = _templates(autoescape=True).get_template("report.html.j2")
    return template.render(report=report, drawn=drawn)


def to_markdown(report: Report) -> str:
    """The same for a repository or an issue; the figures stand beside it as files."""
    return _templates(autoescape=False).get_template("report.md.j2").render(report=report)


def _templates(*, autoescape: bool) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _figures(experiment: Experiment, comparison: Comparison) -> list[Figure]:
    drawn = [_draw("layouts", "Which block stands where.", figures.layout_strips(experiment))]
    values = metric_table(experiment, comparison.metric)
    if comparison.model is not None and comparison.model.df > 0:
        drawn.append(_draw("differences", _FOREST, figures.forest(experiment, comparison, values)))
    logged = curves(experiment)
    if not logged.empty and comparison.baseline in set(logged["arm"]):
        chart = figures.learning_curves(experiment, logged)
        drawn.append(_draw("curves", _CURVES, chart))
    positions = table(experiment, "loss_by_position")
    if not positions.empty:
        length = experiment.baseline.data.sequence_length
        chart = figures.loss_by_position(experiment, positions, length)
        drawn.append(_draw("positions", _POSITIONS, chart))
    speeds = pd.DataFrame(
        [{"arm": run.arm.name, "seed": run.planned.seed, "speed": run.metrics[SPEED]}
         for run in experiment.trained if SPEED in run.metrics]
    )  # fmt: skip
    if not speeds.empty:
        drawn.append(_draw("throughput", _SPEED, figures.throughput(experiment, speeds)))
    return drawn


_FOREST = (
    "Point: difference to the baseline. Line: 95 % interval that holds for all arms at once. "
    "Ticks: single seeds, each against the baseline's run of the same seed. Grey: differences that "
    "this experiment would miss more than one time in five. Dashed: the smallest effect that "
    "matters, where one was stated."
)
_CURVES = "Line: mean over seeds. Band: lowest to highest seed. The start may be cut off above."
_POSITIONS = (
    "Bits per byte at each position of long validation documents, to several times the training "
    "length. Line: mean over seeds. Band: lowest to highest seed. Both panels rest on the same "
    "documents, so what is common to all arms cancels on the right."
)
_SPEED = "Shared device: not to be ranked. One dot a seed, as measured while other runs went on."


def _draw(name: str, caption: str, chart: alt.TopLevelMixin) -> Figure:
    """Draw a figure; its inner ids carry its name, because one page holds several."""
    svg = re.sub(r'(\bid="|url\(#)', rf"\g<1>{name}-", figures.to_svg(chart))
    return Figure(name=name, caption=caption, svg=svg)


def _row(experiment: Experiment, outcome: ArmOutcome) -> ArmRow:
    arm = next(arm for arm in experiment.plan.arms if arm.name == outcome.arm)
    runs = [run for run in experiment.of_arm(outcome.arm) if run.result is not None]
    return ArmRow(
        arm=outcome.arm,
        layout=outcome.layout,
        parameters=_count(arm.counts.get("parameters")),
        state=_count(arm.counts.get("state_elements")),
        n=count_text(outcome),
        mean=number(outcome.mean),
        mean_interval=interval(outcome.mean_low, outcome.mean_high),
        difference=number(outcome.difference, signed=True),
        difference_interval=interval(outcome.low, outcome.high, signed=True),
        p=_p_value(outcome.p),
        permutation_p=_p_value(outcome.permutation_p),
        resolvable=number(outcome.resolvable),
        verdict=outcome.verdict,
        seconds=_median([seconds(run) for run in runs], "{:,.0f}"),
        speed=_median([run.metrics.get(SPEED) for run in runs], "{:,.0f}"),
        memory=_median([run.metrics.get(MEMORY) for run in runs], "{:.2f}"),
    )


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _p_value(p: float | None) -> str:
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _median(values: Sequence[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    return form.format(pd.Series(known).median()) if known else "–"


def _duration(total: float) -> str:
    if total < 120:
        return f"{total:.0f} seconds"
    return f"{total / 60:.0f} minutes" if total < 7_200 else f"{total / 3600:.1f} hours"
