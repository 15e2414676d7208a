"""Pictures of an inspection: loss, growth, memory, inputs and values of states by position."""

import altair as alt
import numpy as np
import pandas as pd

from arch_search.state_analysis.inspection import Inspection
from dashboards.palette import ARMS, BASELINE, INK
from dashboards.state_panels import (
    WIDTH,
    layer_facets,
    layer_names,
    layer_panels,
    length_rule,
    of_prompt,
    panel_width,
    position_axis,
    shown_layers,
    smoothed,
)

LEAST = 1e-6  # less of the first token is not drawn
CAPTIONS = {
    "loss": "Mean loss by position, the state carried. Dashed: the training length. Red: where "
    "collapse begins, if it was found.",
    "growth": "Each head's norm over what it was at the training length, the largest head of each "
    "layer: blue shrinks, orange grows. All layers.",
    "norms": "Frobenius norm of each head's state; one line a head.",
    "outliers": "The largest channel of each head over the median one (root mean square). A few "
    "channels that leave the others behind are how states explode.",
    "memory": "What is left of the first token. Solid: the product of the gates behind it (exact "
    "for Mamba-2; at most that much in a delta rule, which also erases; at least that much in "
    "M²RNN, whose candidate carries the state as well). Dotted: the measured influence, by which "
    "share of its norm the state moves when the first token is another.",
    "drives": "What drives the state: mean size of each input of the recurrence (root of mean "
    "square plus variance, over a piece), as a multiple of its value at the start; a line a head.",
    "values": "State values at the training length and at the end, all heads of a layer: counts "
    "on a logarithmic scale.",
    "mitigations": "Loss under each change of the recurrence, in buckets of half a training "
    "length. Dashed: the training length.",
}


def draw_inspection(found: Inspection) -> dict[str, alt.TopLevelMixin]:
    """Every figure for which the tables hold something, by name; see `CAPTIONS`."""
    charts: dict[str, alt.TopLevelMixin] = {"loss": loss(found)}
    if not found.tables["states"].empty:
        charts |= {
            "growth": growth(found),
            "norms": norms(found),
            "outliers": outliers(found),
            "memory": memory(found),
            "values": values(found),
        }
    if not found.tables["drives"].empty:
        charts["drives"] = drives(found)
    if not found.mitigated_losses.empty:
        charts["mitigations"] = mitigations(found)
    return charts


def loss(found: Inspection) -> alt.TopLevelMixin:
    """Loss by position, a panel a prompt."""
    panels = []
    for prompt, collapse in found.collapse.items():
        rows = of_prompt(found.tables["losses"], prompt)
        layers = [
            alt.Chart(rows)
            .mark_line(color=ARMS[1], strokeWidth=2)
            .encode(
                x=position_axis(found),
                y=alt.Y("loss:Q", title="loss (nats a token)", scale=alt.Scale(zero=False)),
            ),
            length_rule(found),
        ]
        if collapse.position is not None:
            at = pd.DataFrame({"position": [collapse.position]})
            layers.append(
                alt.Chart(at).mark_rule(color=ARMS[0], strokeWidth=2).encode(x="position:Q")
            )
        title = f"{prompt}: {collapse.sentence()}"
        panels.append(alt.layer(*layers).properties(width=WIDTH, height=200, title=title))
    return alt.vconcat(*panels)


def growth(found: Inspection) -> alt.TopLevelMixin:
    """Norm over that at the training length: a row a layer, all layers."""
    states = found.tables["states"]
    key = ["prompt", "layer", "part", "head"]
    near = states.assign(off=(states["position"] - found.training_length).abs())
    at = pd.DataFrame(near.sort_values("off").drop_duplicates(key)).set_index(key)
    rows = states.join(pd.DataFrame({"then": at["norm"]}), on=key)
    rows = rows.assign(growth=rows["norm"] / rows["then"].where(rows["then"] > 0))
    by = ["prompt", "layer", "kind", "position"]
    rows = pd.DataFrame(rows.sort_values("growth").drop_duplicates(by, keep="last"))
    rows = rows.sort_values(by).assign(
        logarithm=np.log2(rows["growth"]), before=rows["position"] - found.piece
    )
    rows = rows.assign(name=layer_names(rows))
    edge = max(float(np.nanmax(np.abs(rows["logarithm"].to_numpy(dtype=float)))), 1e-3)
    scale = alt.Scale(domain=[-edge, 0, edge], range=["#0072b2", "#f4f4f4", "#d55e00"])
    layers = len(set(rows["layer"]))
    chart = (
        alt.Chart(rows)
        .mark_rect()
        .encode(
            x=alt.X(
                "before:Q", title="position (tokens)", axis=alt.Axis(format=",d", grid=False),
                scale=alt.Scale(domain=[0, found.length], nice=False),
            ),
            x2="position:Q",
            y=alt.Y("name:N", title=None, sort=list(dict.fromkeys(rows["name"]))),
            color=alt.Color(
                "logarithm:Q", scale=scale,
                legend=alt.Legend(title="doublings of the norm since the training length",
                                  gradientLength=260, titleLimit=400),
            ),
        )
        .properties(width=WIDTH, height=max(22 * min(layers, 12), 8 * layers))
    )  # fmt: skip
    header = alt.Header(labelAngle=0, labelAlign="left")
    order = list(found.collapse)
    return chart.facet(row=alt.Row("prompt:N", title=None, header=header, sort=order))


def norms(found: Inspection) -> alt.TopLevelMixin:
    """Each head's norm."""
    states = found.tables["states"]
    return layer_panels(found, states.assign(value=states["norm"]), "norm", log=True)


def outliers(found: Inspection) -> alt.TopLevelMixin:
    """The largest row or column over the median one, by head."""
    states = found.tables["states"]
    both = states[["largest_row_over_median", "largest_column_over_median"]].max(axis=1)
    return layer_panels(found, states.assign(value=both), "largest channel over median", log=True)


def memory(found: Inspection) -> alt.TopLevelMixin:
    """Product of gates and measured influence, both on one logarithmic axis."""
    table = found.tables["memory"]
    long = table.melt(
        id_vars=["prompt", "layer", "kind", "head", "position"],
        value_vars=["product", "influence"], var_name="measure",
    ).dropna()  # fmt: skip
    long = long.assign(value=long["value"].astype(float))
    long = pd.DataFrame(long[long["value"] >= LEAST])
    return layer_panels(found, long, "left of the first token", log=True, dash="measure")


def drives(found: Inspection) -> alt.TopLevelMixin:
    """Size of each input as a multiple of that in the first piece: a row a layer."""
    table = shown_layers(found.tables["drives"])
    size = np.sqrt(table["mean"] ** 2 + table["variance"])
    rows = table.assign(size=size, name=layer_names(table))
    key = ["prompt", "layer", "input", "head"]
    first = pd.DataFrame(rows.sort_values("position").drop_duplicates(key)).set_index(key)
    rows = rows.join(pd.DataFrame({"start": first["size"]}), on=key)
    rows = rows.assign(value=rows["size"] / rows["start"].where(rows["start"] > 0))
    prompts = list(found.collapse)
    colour = alt.Color("prompt:N", scale=alt.Scale(domain=prompts, range=[ARMS[1], ARMS[0]]))
    shown = []
    for name in dict.fromkeys(rows["name"]):
        layer = pd.DataFrame(rows[rows["name"] == name])
        inputs = list(dict.fromkeys(layer["input"]))
        width = (WIDTH - 70 * (len(inputs) - 1)) // len(inputs)
        line = (
            alt.Chart(layer)
            .mark_line(strokeWidth=1.2, opacity=0.65)
            .encode(
                x=position_axis(found),
                y=alt.Y("value:Q", title="multiple of the start", scale=alt.Scale(zero=False),
                        axis=alt.Axis(format=".2~f", tickCount=5)),
                color=colour,
                detail="head:N",
            )
            .properties(width=width, height=120)
        )  # fmt: skip
        column = alt.Column("input:N", title=None, sort=inputs)
        shown.append(line.facet(column=column, title=name).resolve_scale(y="independent"))
    return alt.vconcat(*shown)


def values(found: Inspection) -> alt.TopLevelMixin:
    """Counts of values at two positions."""
    table = shown_layers(found.tables["histogram"])
    table = table.assign(value=(table["low"] + table["high"]) / 2, name=layer_names(table))
    counts = table.assign(when="at token " + table["position"].astype(str))
    when = [f"at token {at}" for at in sorted(set(table["position"]))]
    shown = (
        alt.Chart(counts)
        .mark_line(interpolate="step", strokeWidth=1.5)
        .encode(
            x=alt.X("value:Q", title="state value", axis=alt.Axis(grid=False, tickCount=4)),
            y=alt.Y("sum(count):Q", title="count", scale=alt.Scale(type="symlog")),
            color=alt.Color("when:N", scale=alt.Scale(domain=when, range=[BASELINE, ARMS[0]])),
        )
        .properties(width=panel_width(table), height=130)
    )
    return layer_facets(shown, table, independent_x=True)


def mitigations(found: Inspection) -> alt.TopLevelMixin:
    """Loss by position under each mitigation, a panel a prompt."""
    names = list(dict.fromkeys(found.mitigated_losses["mitigation"]))
    scale = alt.Scale(domain=names, range=[INK, *ARMS][: len(names)])
    panels = [
        alt.layer(
            alt.Chart(smoothed(found, of_prompt(found.mitigated_losses, prompt)))
            .mark_line(strokeWidth=2)
            .encode(
                x=position_axis(found),
                y=alt.Y("loss:Q", title="loss (nats a token)", scale=alt.Scale(zero=False)),
                color=alt.Color("mitigation:N", scale=scale),
            ),
            length_rule(found),
        ).properties(width=WIDTH, height=220, title=prompt)
        for prompt in found.collapse
    ]
    return alt.vconcat(*panels)
