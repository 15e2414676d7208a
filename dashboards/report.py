"""One experiment as a page to read: one HTML file, Markdown, LaTeX, and the figures as SVG."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jinja2
from markupsafe import Markup

from arch_search.budgets import token_multipliers
from arch_search.compare import Comparison, compare_experiment
from arch_search.documents import document_differences
from arch_search.errors import UsageError
from arch_search.experiment import nearest
from arch_search.measured_speeds import read_speeds
from arch_search.metric_names import label
from arch_search.records import Experiment, read_experiment, seconds
from arch_search.regressions import metric_effects, regression_sentences
from arch_search.storage import Root, write_atomic
from dashboards.controls import how_controlled, notes, reach_words, recorded_environment
from dashboards.drawn import Figure, draw_all
from dashboards.latex import escape_latex
from dashboards.rows import (
    ArmRow,
    ContrastRow,
    PublishedRow,
    RateContrastRow,
    RateRow,
    ReachRow,
    arm_row,
    contrast_rows,
    published_rows,
    rate_contrast_rows,
    rate_rows,
    reach_rows,
)

HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Everything that the templates show."""

    comparison: Comparison
    metric_label: str
    created: str
    counts: str
    found: tuple[str, ...]
    speed_of: str
    rows: tuple[ArmRow, ...]
    contrasts: tuple[ContrastRow, ...]
    rates: tuple[RateRow, ...]
    rate_contrasts: tuple[RateContrastRow, ...]
    failures: tuple[RateRow, ...]
    reach: tuple[ReachRow, ...]
    reach_words: tuple[str, ...]
    published: tuple[PublishedRow, ...]
    published_source: str
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
    plan, finished = experiment.plan, experiment.trained
    effects = metric_effects(experiment)
    documents = document_differences(experiment)
    multipliers, (speeds, _) = token_multipliers(experiment), read_speeds(experiment)
    total = sum(seconds(run) or 0 for run in finished)
    return Report(
        comparison=comparison,
        metric_label=label(comparison.metric),
        created=plan.created[:16].replace("T", " "),
        counts=f"{len(plan.arms)} arms, {len(finished)} of {len(experiment.runs)} runs "
        f"finished, {_duration(total)} of training and evaluation",
        found=(*comparison.sentences, *regression_sentences(effects, comparison.metric)),
        speed_of=speeds.source if speeds else "shared device: not to be ranked",
        rows=tuple(arm_row(experiment, outcome, speeds) for outcome in comparison.arms),
        contrasts=contrast_rows(experiment, comparison),
        rates=rate_rows(comparison.rates),
        rate_contrasts=rate_contrast_rows(experiment, comparison),
        failures=rate_rows(comparison.failures),
        reach=reach_rows(experiment, comparison.readings, multipliers, documents),
        reach_words=reach_words(experiment, comparison, multipliers, documents),
        published=published_rows(experiment),
        published_source=plan.published.source if plan.published else "",
        figures={f.name: f for f in draw_all(experiment, comparison, speeds, effects, documents)},
        controlled=how_controlled(experiment, comparison, finished),
        notes=notes(experiment, comparison),
        environment=recorded_environment(finished),
        source=plan.source,
    )


def report_files(report: Report, *, only: Sequence[str] = ()) -> dict[str, str]:
    """What is written, by file name: report.html, .md, .tex and a figure each.

    Args:
        only: these figures, and the Markdown that shows them: small enough for a repository.
    Raises:
        UsageError: one of them is not drawn of this experiment.
    """
    if only:
        kept = keep_figures({name: figure.svg for name, figure in report.figures.items()}, only)
        shown = replace(report, figures={name: report.figures[name] for name in kept})
        return {f"{name}.svg": svg for name, svg in kept.items()} | {
            "report.md": to_markdown(shown)
        }
    return {
        **{f"{figure.name}.svg": figure.svg for figure in report.figures.values()},
        "report.html": to_html(report),
        "report.md": to_markdown(report),
        "report.tex": to_latex(report),
    }


def keep_figures(drawn: Mapping[str, str], only: Sequence[str]) -> dict[str, str]:
    """The figures of these names. Raises UsageError for one that is not there."""
    for name in only:
        if name not in drawn:
            raise UsageError(
                f"--figures: no figure {name!r} is drawn of this experiment; "
                f"{nearest(name, list(drawn))}"
            )
    return {name: drawn[name] for name in only}


def write_files(files: Mapping[str, str], folder: Path) -> list[Path]:
    """Write each text under its name; returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_atomic(folder / name, text)
    return [folder / name for name in files]


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write report.html, .md, .tex and the figures beside them; returns what was written."""
    return write_files(report_files(report), folder)


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


def to_latex(report: Report) -> str:
    """The tables for a paper's appendix (booktabs), to be read in with \\input."""
    templates = _templates(autoescape=False)
    templates.filters["tex"] = escape_latex
    return templates.get_template("report.tex.j2").render(report=report)


def _templates(*, autoescape: bool) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _duration(total: float) -> str:
    if total < 120:
        return f"{total:.0f} seconds"
    return f"{total / 60:.0f} minutes" if total < 7_200 else f"{total / 3600:.1f} hours"
