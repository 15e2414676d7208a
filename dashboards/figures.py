"""The figures of a report, each a self-contained SVG: charts by Altair, drawn without a browser."""

import json
import re
from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd
import vl_convert

from arch_search.compare import Comparison
from arch_search.metric_names import direction, label
from arch_search.records import Experiment, curve_metric
from dashboards.palette import INK, MUTED, SHADE, arm_colours, chart_style, mixer_colours

WIDTH = 1_000
LONG_NAME = 44  # characters of an arm's name on one line
AN_OCTAVE = 4  # points of the loss by position for each doubling
MANY_ARMS = 7  # more than these get a panel each, beside the baseline


def to_svg(chart: alt.TopLevelMixin) -> str:
    """Draw a chart in the house style."""
    with alt.data_transformers.enable("default", max_rows=None):  # a hundred curves are more
        spec = chart.to_dict(validate=False)  # half of the time otherwise; a test draws them all
    spec["config"] = chart_style()
    return vl_convert.vegalite_to_svg(spec)


def layout_strips(experiment: Experiment) -> alt.TopLevelMixin:
    """One row an arm, one cell a layer, coloured by mixer."""
    order = arm_order(experiment)
    rows = pd.DataFrame(
        [
            {"arm": arm.name, "layer": i, "mixer": layer.kind}
            for arm in experiment.plan.arms
            for i, layer in enumerate(arm.model.layers)
        ]
    )
    kinds = list(dict.fromkeys(rows["mixer"]))
    colours = mixer_colours(kinds)
    layers = max(len(arm.model.layers) for arm in experiment.plan.arms)
    return (
        alt.Chart(rows)
        .mark_rect(stroke="white", strokeWidth=2, cornerRadius=3)
        .encode(
            x=alt.X(
                "layer:O", title="layer", axis=alt.Axis(labelAngle=0, domain=False, ticks=False)
            ),
            y=alt.Y("arm:N", sort=order, title=None, axis=row_axis(order)),
            color=alt.Color(
                "mixer:N",
                scale=alt.Scale(domain=kinds, range=[colours[kind] for kind in kinds]),
                legend=alt.Legend(symbolType="square", symbolSize=160, symbolStrokeWidth=0),
            ),
        )
        .properties(width=min(46 * layers, WIDTH - 160), height=alt.Step(30))
    )


def forest(experiment: Experiment, comparison: Comparison, values: pd.DataFrame):
    """Differences to the baseline with intervals; grey: too small to be seen four times in five.

    Args:
        values: columns arm, seed, value: each finished run on the metric.
    """
    outcomes = [outcome for outcome in comparison.arms if outcome.difference is not None]
    order = [outcome.arm for outcome in outcomes]
    found = pd.DataFrame(
        [
            {"arm": o.arm, "difference": o.difference, "low": o.low, "high": o.high,
             "least": -o.resolvable if o.resolvable is not None else None,
             "most": o.resolvable, "finding": o.verdict.split(":")[0]}
            for o in outcomes
        ]
    )  # fmt: skip
    y = alt.Y("arm:N", sort=order, title=None, axis=row_axis(order))
    way = {-1: " (lower is better)", 1: " (higher is better)", 0: ""}[direction(comparison.metric)]
    title = f"difference to {comparison.baseline} in {label(comparison.metric)}{way}"
    base = alt.Chart(found)
    scale = alt.Scale(zero=True, nice=False, padding=14)
    layers: list[alt.Chart] = [
        base.mark_bar(color=SHADE, height=30).encode(
            x=alt.X("least:Q", title=title, scale=scale, axis=alt.Axis(tickCount=8)),
            x2="most:Q",
            y=y,
        ),
        alt.Chart(pd.DataFrame({"at": [0.0]})).mark_rule(color=INK).encode(x="at:Q"),
    ]
    if comparison.smallest_effect is not None:
        edges = pd.DataFrame({"at": [-comparison.smallest_effect, comparison.smallest_effect]})
        layers.append(alt.Chart(edges).mark_rule(color=MUTED, strokeDash=[4, 4]).encode(x="at:Q"))
    paired = paired_differences(values, comparison.baseline)
    colour = arm_colour(experiment, legend=False)
    layers += [
        base.mark_rule(strokeWidth=2.5).encode(x="low:Q", x2="high:Q", y=y, color=colour),
        alt.Chart(paired).mark_tick(thickness=1.5, size=14, opacity=0.55, yOffset=0)
        .encode(x="difference:Q", y=y, color=colour),
        base.mark_point(size=90, filled=True, opacity=1)
        .encode(x="difference:Q", y=y, color=colour),
        base.mark_text(align="left", dx=14, fontSize=12, color=INK)
        .encode(x=alt.value(WIDTH - 260), y=y, text="finding:N"),
    ]  # fmt: skip
    return alt.layer(*layers).properties(width=WIDTH - 260, height=alt.Step(46))


def learning_curves(experiment: Experiment, curves: pd.DataFrame):
    """Left: the curve of each arm, band over seeds. Right: minus the baseline, seed by seed.

    With many arms the differences alone, a panel for each.
    """
    metric = curve_metric(curves)
    one = curves.query("metric == @metric")
    x = alt.X(
        "tokens:Q",
        title="training tokens",
        axis=alt.Axis(format="~s", grid=False, tickCount=6),
        scale=alt.Scale(domainMin=0, nice=False),
    )
    return _beside_baseline(
        experiment, one, x, label(metric), ["Learning curves", "Minus the baseline, same seed"],
        clip_to=_late_range(one),
    )  # fmt: skip


def loss_by_position(experiment: Experiment, table: pd.DataFrame, training_length: int):
    """Bits per byte by position in long documents; the training length is marked.

    Pieces are pooled to a few points an octave: on a logarithmic axis the far ones stand so close
    that only the text's own ups and downs would be seen.
    """
    at = table.assign(
        position=(table["first"] + table["last"] + 1) / 2, value=table["bits_per_byte"]
    )
    octave = np.round(AN_OCTAVE * np.log2(at["position"].to_numpy(dtype=float)))
    pooled = at.assign(octave=octave).groupby(["arm", "seed", "octave"])
    at = pd.DataFrame(pooled[["position", "value"]].agg("mean")).reset_index()
    ticks = [training_length * 2.0**power for power in range(-4, 5)]
    ends = [float(min(at["position"])), float(max(table["last"]) + 1)]
    x = alt.X(
        "position:Q",
        title="position in the document (tokens)",
        scale=alt.Scale(type="log", base=2, nice=False, domain=ends),
        axis=alt.Axis(values=ticks, format="d", grid=False, labelOverlap=True),
    )
    return _beside_baseline(
        experiment, at, x, "bits per byte", ["Loss by position", "Minus the baseline, same seed"],
        mark=(training_length, f"training length {training_length}"),
    )  # fmt: skip


def throughput(experiment: Experiment, results: pd.DataFrame):
    """Tokens a second of each run, one dot a seed. Not a ranking: the device was shared."""
    order = arm_order(experiment)
    return (
        alt.Chart(results)
        .mark_point(filled=True, size=70, opacity=0.8)
        .encode(
            x=alt.X("speed:Q", title="tokens per second", scale=alt.Scale(zero=True)),
            y=alt.Y("arm:N", sort=order, title=None, axis=row_axis(order)),
            color=arm_colour(experiment, legend=False),
        )
        .properties(width=WIDTH - 200, height=alt.Step(28), title="Shared device: not to be ranked")
    )


def arm_order(experiment: Experiment) -> list[str]:
    """The baseline, then the arms as planned."""
    baseline = experiment.baseline.name
    return [baseline, *(arm.name for arm in experiment.plan.arms if arm.name != baseline)]


def paired_differences(
    values: pd.DataFrame, baseline: str, by: list[str] | None = None
) -> pd.DataFrame:
    """Each run minus the baseline's run of the same seed (and step): column `difference`."""
    keys = ["seed", *(by or [])]
    base = values.loc[values["arm"] == baseline, [*keys, "value"]]
    others = values.query("arm != @baseline")
    joined = others.merge(base, on=keys, suffixes=("", "_baseline"))
    return joined.assign(difference=joined["value"] - joined["value_baseline"])


def _beside_baseline(
    experiment: Experiment,
    table: pd.DataFrame,
    x: alt.X,
    title: str,
    headings: list[str],
    *,
    mark: tuple[float, str] | None = None,
    clip_to: tuple[float, float] | None = None,
):
    """Left: every arm. Right: minus the baseline's run of the same seed; panels for many arms.

    Args:
        table: columns arm, seed, value and the one that `x` shows.
        mark: a place on the x axis, and what to call it.
    """
    across = str(x["shorthand"]).removesuffix(":Q")
    paired = paired_differences(table, experiment.baseline.name, by=[across])
    zero = alt.Chart(pd.DataFrame({"at": [0.0]})).mark_rule(color=INK).encode(y="at:Q")
    marks = _marked(*mark) if mark else []
    many = len(experiment.plan.arms) > MANY_ARMS
    axis = ["minus the baseline,", title] if many else f"difference in {title}"
    right = [zero, *_bands(experiment, paired, "difference", axis, x=x), *marks]
    if many:
        return _panels(right, experiment, _over_seeds(paired, "difference", across))
    left = [*_bands(experiment, table, "value", title, x=x, clip_to=clip_to), *marks]
    size = {"width": (WIDTH - 150) // 2, "height": 300}
    return alt.hconcat(
        alt.layer(*left).properties(title=headings[0], **size),
        alt.layer(*right).properties(title=headings[1], **size),
        spacing=40,
    )


def _marked(at: float, text: str) -> list[alt.Chart]:
    shown = alt.Chart(pd.DataFrame({"at": [at], "text": [text]}))
    label_ = {"align": "left", "dx": 6, "dy": 2, "baseline": "top", "fontSize": 12}
    return [
        shown.mark_rule(color=INK, strokeDash=[4, 4]).encode(x="at:Q"),
        shown.mark_text(color=INK, **label_).encode(x="at:Q", y=alt.value(0), text="text:N"),
    ]


def _over_seeds(table: pd.DataFrame, value: str, across: str) -> pd.DataFrame:
    """Mean, min and max over seeds for each arm and value of column `across`."""
    grouped = table.groupby(["arm", across])[value]
    return grouped.agg(["mean", "min", "max"]).reset_index()


def _bands(
    experiment: Experiment,
    table: pd.DataFrame,
    value: str,
    title: str | list[str],
    *,
    x: alt.X,
    clip_to: tuple[float, float] | None = None,
) -> list[alt.Chart]:
    """Mean over seeds as a line, smallest to largest seed as a band; without data in panels."""
    panels = len(experiment.plan.arms) > MANY_ARMS
    across = str(x["shorthand"]).removesuffix(":Q")
    base = alt.Chart() if panels else alt.Chart(_over_seeds(table, value, across))
    scale = alt.Scale(zero=False, nice=False, padding=6)
    if clip_to is not None:
        scale = alt.Scale(domain=clip_to)
    colour = arm_colour(experiment, legend=not panels)
    base = base.encode(x=x, color=colour)
    low = alt.Y("min:Q", title=title, scale=scale)
    return [
        base.mark_area(opacity=0.16, clip=True).encode(y=low, y2="max:Q"),
        base.mark_line(strokeWidth=2, clip=True).encode(
            y=alt.Y("mean:Q", title=title, scale=scale)
        ),
    ]


def _panels(layers: list[alt.Chart], experiment: Experiment, rows: pd.DataFrame):
    """A small panel for each arm but the baseline."""
    others = arm_order(experiment)[1:]
    data = rows.assign(panel=rows["arm"])
    panel = alt.Facet("panel:N", sort=others, title=None)
    return alt.layer(*layers, data=data).properties(width=195, height=130).facet(panel, columns=4)


def _late_range(curves: pd.DataFrame) -> tuple[float, float]:
    """The range of values after the first sixth: the fall from the start would flatten the rest."""
    steps, values = curves["step"].to_numpy(), curves["value"].to_numpy()
    late = values[steps >= steps.max() / 6]
    pad = 0.04 * float(np.ptp(late))
    return float(late.min()) - pad, float(late.max()) + pad


def arm_colour(experiment: Experiment, *, legend: bool, symbol: str = "stroke") -> alt.Color:
    """Each arm in its colour, the same in every figure."""
    order = arm_order(experiment)
    colours = arm_colours(order, experiment.baseline.name)
    scale = alt.Scale(domain=order, range=[colours[arm] for arm in order])
    if not legend:
        return alt.Color("arm:N", scale=scale, legend=None)
    size = 220 if symbol == "stroke" else 90
    kind = symbol if symbol == "stroke" else alt.Undefined  # else a mark's own shape shows
    shown = alt.Legend(symbolType=kind, symbolOpacity=1, symbolSize=size, columns=6)
    return alt.Color("arm:N", scale=scale, legend=shown)


def row_axis(names: Sequence[str] = ()) -> alt.Axis:
    """The axis of a list of names; those that are too long for a line take several."""
    folded = {name: _folded(name) for name in names if len(name) > LONG_NAME}
    told = f"({json.dumps(folded)})[datum.label] || datum.label" if folded else alt.Undefined
    return alt.Axis(labelColor=INK, labelLimit=320, labelExpr=told, domain=False, ticks=False)


def _folded(name: str) -> list[str]:
    """The name in lines of at most `LONG_NAME` characters, broken behind dashes where it can be."""
    lines = [""]
    for part in re.findall(r"[^-]*-|[^-]+", name):
        if lines[-1] and len(lines[-1]) + len(part) > LONG_NAME:
            lines.append("")
        lines[-1] += part
    return lines
