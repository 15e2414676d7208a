"""Which figures a report has, and what stands under them."""

import re
from dataclasses import dataclass

import altair as alt
import pandas as pd

from arch_search.compare import Comparison, linked_fit, metric_table
from arch_search.documents import DocumentDifference, document_table
from arch_search.measured_speeds import Speeds
from arch_search.records import Experiment, curves, table
from arch_search.regressions import MetricEffect
from arch_search.statistics.linear import Fit
from arch_search.storage import Root
from arch_search.throughput.record import read_record
from dashboards import depth, evidence, figures, throughput
from dashboards.rows import SPEED
from dashboards.task_figures import draw_tasks
from dashboards.waterfall import waterfall


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """An SVG with its caption; `name` is its file's name without the ending."""

    name: str
    caption: str
    svg: str


def draw_all(
    experiment: Experiment,
    comparison: Comparison,
    speeds: Speeds | None,
    effects: tuple[MetricEffect, ...],
    documents: tuple[DocumentDifference, ...],
) -> list[Figure]:
    """Every figure for which the records hold something."""
    values = metric_table(experiment, comparison.metric)
    modelled = comparison.model is not None and comparison.model.df > 0
    fit = linked_fit(experiment, values) if modelled else None
    charts: dict[str, alt.TopLevelMixin | None] = {"layouts": figures.layout_strips(experiment)}
    if fit is not None:
        charts |= _of_the_model(experiment, comparison, values, fit)
    charts["metrics"] = evidence.all_metrics(effects) if effects else None
    charts |= _of_the_runs(experiment)
    charts |= draw_tasks(experiment)
    if documents:
        each = document_table(experiment)
        charts["documents"] = evidence.documents(experiment, each, documents)
    costs = _costs(experiment, speeds)
    if not costs.empty and not comparison.rates:
        charts["tradeoffs"] = evidence.tradeoffs(experiment, comparison, costs)
    return [_draw(name, chart) for name, chart in charts.items() if chart is not None]


def _of_the_model(
    experiment: Experiment, comparison: Comparison, values: pd.DataFrame, fit: Fit
) -> dict[str, alt.TopLevelMixin | None]:
    return {
        "waterfall": waterfall(experiment, comparison),
        "contrasts": evidence.contrasts(comparison),
        "differences": figures.forest(experiment, comparison, values),
        "interactions": evidence.interactions(experiment, fit, comparison),
        "residuals": evidence.residuals(fit),
    }


def _of_the_runs(experiment: Experiment) -> dict[str, alt.TopLevelMixin | None]:
    charts: dict[str, alt.TopLevelMixin | None] = {}
    logged = curves(experiment)
    if not logged.empty and experiment.baseline.name in set(logged["arm"]):
        charts["curves"] = figures.learning_curves(experiment, logged)
    positions = table(experiment, "loss_by_position")
    if not positions.empty:
        length = experiment.baseline.data.sequence_length
        charts["positions"] = figures.loss_by_position(experiment, positions, length)
    knocked_out = table(experiment, "knockout", later=True)
    if not knocked_out.empty:
        charts["knockout"] = depth.by_depth(experiment, knocked_out)
    speeds = pd.DataFrame(
        [{"arm": run.arm.name, "seed": run.planned.seed, "speed": run.metrics[SPEED]}
         for run in experiment.trained if SPEED in run.metrics]
    )  # fmt: skip
    if not speeds.empty:
        charts["throughput"] = figures.throughput(experiment, speeds)
    lane = read_record(Root(experiment.folder.path.parents[1]), experiment.plan.name)
    if lane is not None and lane.get("cells"):
        charts["lane"] = throughput.picture(lane)
    return charts


def _costs(experiment: Experiment, speeds: Speeds | None) -> pd.DataFrame:
    """Columns arm, cost, amount; a cost in which no arm differs is left out.

    Empty if no counted cost differs: a shared device's speeds alone would be read as a ranking.

    Args:
        speeds: the throughput lane's, which stand before those of training runs.
    """
    names = {"state_elements": "state elements", "forward_flops_per_token": "forward FLOPs a token",
             "parameters": "parameters"}  # fmt: skip
    rows = [
        (arm.name, name, arm.counts[count])
        for count, name in names.items()
        for arm in experiment.plan.arms
        if count in arm.counts
    ]
    for arm in experiment.plan.arms:
        shared = [r.metrics[SPEED] for r in experiment.of_arm(arm.name) if SPEED in r.metrics]
        if speeds is not None:
            rows.append((arm.name, "tokens a second", speeds.tokens_per_second[arm.name]))
        elif shared:
            median = float(pd.Series(shared).median())
            rows.append((arm.name, "tokens a second (shared device)", median))
    costs = pd.DataFrame(rows, columns=["arm", "cost", "amount"])
    levels = {name: set(costs.loc[costs["cost"] == name, "amount"]) for name in costs["cost"]}
    if not any(len(levels.get(name, ())) > 1 for name in names.values()):
        return costs.iloc[:0]
    return costs.loc[[len(levels[name]) > 1 for name in costs["cost"]]]


CAPTIONS = {
    "layouts": "Which block stands where.",
    "contrasts": "Point: the contrast's estimate. Line: 95 % interval that holds for all declared "
    "contrasts at once. Grey: values that this experiment would miss more than one time in five.",
    "waterfall": "From the first arm of the declared chain to the last. Bar: what a step changes, "
    "with its share of the whole where the whole is resolved. Line: 95 % interval of the step that "
    "holds for all declared contrasts at once. Grey bars are not resolved. What a step is worth "
    "depends on its place.",
    "differences": "Point: difference to the baseline. Line: 95 % interval that holds for all arms "
    "at once. Ticks: single seeds, each against the baseline's run of the same seed. Grey: "
    "differences that this experiment would miss more than one time in five. Dashed: the smallest "
    "effect that matters, where one was stated.",
    "interactions": "Means of each combination of two factors over all others, minus the baseline. "
    "Lines: 95 % intervals, each for itself. Where effects add up, the lines run parallel.",
    "metrics": "Every metric in percent of the baseline's mean. Line: 95 % interval for all arms "
    "of that metric. Over metrics nothing is adjusted, so that no regression is missed: with many "
    "metrics some will stand out by chance.",
    "curves": "Line: mean over seeds. Band: lowest to highest seed. The start may be cut "
    "off above.",
    "positions": "Bits per byte by position in long validation documents, to several times "
    "the training length, pooled to four points an octave. Line: mean over seeds. Band: lowest to "
    "highest seed. Both panels rest on the same documents, so what is common to all arms cancels "
    "on the right.",
    "sequences": "Held-out items of the task, mean over seeds: the share that is right at a "
    "position, and of sequences in which all up to it is. Dashed: the training length.",
    "states": "Line: the best arm of each mixer and state size, mean over seeds. Dots: runs. "
    "Dashed, in a mixer's colour: its smallest state with an accuracy of 0.99.",
    "distances": "The share of prompts that are answered to the character where what is asked "
    "stood in the last so many tokens, by the length of the whole prompt. What is lost though it "
    "stands near is lost by collapse, not by distance.",
    "depths": "The share of prompts that are answered to the character, by their length and the "
    "depth at which the answer stands; over seeds.",
    "knockout": "What the metric changes by with one layer knocked out: its mixer removed, or its "
    "state reset. Line: mean over seeds; dots: seeds. The models were not trained for it, and arms "
    "may have other blocks at one depth.",
    "documents": "Dot: a document, larger for more bytes; mean over seeds, minus the baseline's. "
    "Black: over all documents, with a 95 % bootstrap interval over documents.",
    "tradeoffs": "Quality against what it costs; line: 95 % over the arm's own seeds. Speeds said "
    "to be of a shared device are not to be ranked.",
    "throughput": "Shared device: not to be ranked. One dot a seed, as measured while other runs "
    "went on.",
    "lane": "Each arm on a device of its own, in turn with the others. Line behind a point: 95 % "
    "bootstrap interval over rounds. A batch that ran out of memory has no point.",
    "residuals": "What is left of each run once arm and seed are taken out. Left: a funnel would "
    "mean unequal noise. Right: points off the line would mean noise that is not normal.",
}


def _draw(name: str, chart: alt.TopLevelMixin) -> Figure:
    """Draw a figure; its inner ids carry its name, because one page holds several."""
    svg = re.sub(r'(\bid="|url\(#)', rf"\g<1>{name}-", figures.to_svg(chart))
    return Figure(name=name, caption=CAPTIONS[name], svg=svg)
