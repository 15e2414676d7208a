"""Pictures of an inspection: loss, growth, memory, inputs and values of states by position."""

import altair as alt
import numpy as np
import pandas as pd

from arch_search.state_analysis.collapse import in_buckets
from arch_search.state_analysis.inspection import Inspection
from dashboards.palette import ARMS, BASELINE, INK, MUTED

WIDTH = 900
LEAST = 1e-6  # less of the first token is not drawn
MOST_PANELS = 6  # of layers, evenly spaced; tables hold all
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


def _position(found: Inspection, *, log: bool = True) -> alt.X:
    scale = (
        alt.Scale(type="log", base=2, nice=False, domain=[found.piece, found.length])
        if log
        else alt.Scale(domain=[0, found.length], nice=False)
    )
    ticks = [found.training_length * 2.0**power for power in range(-3, 9)]
    axis = alt.Axis(format=",d", grid=False, labelOverlap=True)
    if log:
        axis = alt.Axis(
            values=[tick for tick in ticks if found.piece <= tick <= found.length], format=",d",
            grid=False, labelOverlap=True,
        )  # fmt: skip
    return alt.X("position:Q", title="position (tokens)", scale=scale, axis=axis)


def _training_length(found: Inspection) -> alt.Chart:
    mark = pd.DataFrame({"position": [found.training_length]})
    return alt.Chart(mark).mark_rule(color=MUTED, strokeDash=[5, 4]).encode(x="position:Q")


def loss(found: Inspection) -> alt.TopLevelMixin:
    """Loss by position, a panel a prompt."""
    panels = []
    for prompt, collapse in found.collapse.items():
        rows = _of(found.tables["losses"], prompt)
        layers = [
            alt.Chart(rows)
            .mark_line(color=ARMS[1], strokeWidth=2)
            .encode(
                x=_position(found),
                y=alt.Y("loss:Q", title="loss (nats a token)", scale=alt.Scale(zero=False)),
            ),
            _training_length(found),
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
    rows = rows.assign(name=_names(rows))
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
    return _panels(found, states.assign(value=states["norm"]), "norm", log=True)


def outliers(found: Inspection) -> alt.TopLevelMixin:
    """The largest row or column over the median one, by head."""
    states = found.tables["states"]
    both = states[["largest_row_over_median", "largest_column_over_median"]].max(axis=1)
    return _panels(found, states.assign(value=both), "largest channel over median", log=True)


def memory(found: Inspection) -> alt.TopLevelMixin:
    """Product of gates and measured influence, both on one logarithmic axis."""
    table = found.tables["memory"]
    long = table.melt(
        id_vars=["prompt", "layer", "kind", "head", "position"],
        value_vars=["product", "influence"], var_name="measure",
    ).dropna()  # fmt: skip
    long = long.assign(value=long["value"].astype(float))
    long = pd.DataFrame(long[long["value"] >= LEAST])
    return _panels(found, long, "left of the first token", log=True, dash="measure")


def drives(found: Inspection) -> alt.TopLevelMixin:
    """Size of each input as a multiple of that in the first piece: a row a layer."""
    table = _shown_layers(found.tables["drives"])
    size = np.sqrt(table["mean"] ** 2 + table["variance"])
    rows = table.assign(size=size, name=_names(table))
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
                x=_position(found),
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
    table = _shown_layers(found.tables["histogram"])
    table = table.assign(value=(table["low"] + table["high"]) / 2, name=_names(table))
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
        .properties(width=_panel_width(table), height=130)
    )
    return _faceted(shown, table, independent_x=True)


def mitigations(found: Inspection) -> alt.TopLevelMixin:
    """Loss by position under each mitigation, a panel a prompt."""
    names = list(dict.fromkeys(found.mitigated_losses["mitigation"]))
    scale = alt.Scale(domain=names, range=[INK, *ARMS][: len(names)])
    panels = [
        alt.layer(
            alt.Chart(_smooth(found, _of(found.mitigated_losses, prompt)))
            .mark_line(strokeWidth=2)
            .encode(
                x=_position(found),
                y=alt.Y("loss:Q", title="loss (nats a token)", scale=alt.Scale(zero=False)),
                color=alt.Color("mitigation:N", scale=scale),
            ),
            _training_length(found),
        ).properties(width=WIDTH, height=220, title=prompt)
        for prompt in found.collapse
    ]
    return alt.vconcat(*panels)


def _panels(
    found: Inspection, rows: pd.DataFrame, title: str, *, log: bool = False,
    dash: str | None = None,
) -> alt.TopLevelMixin:  # fmt: skip
    """A column of panels a layer (some of them), a row a prompt, a line a head."""
    rows = _shown_layers(rows)
    rows = rows.assign(name=_names(rows), head=rows["head"].astype(str))
    finite = np.isfinite(rows["value"].to_numpy(dtype=float))
    rows = pd.DataFrame(rows[finite & ((rows["value"] > 0) | (not log))])
    detail = ["head:N", *(["part:N"] if "part" in rows else [])]
    line = (
        alt.Chart()
        .mark_line(strokeWidth=1.2, opacity=0.65, color=ARMS[1])
        .encode(
            x=_position(found),
            y=alt.Y(
                "value:Q", title=title,
                scale=alt.Scale(type="log") if log else alt.Scale(zero=False),
                axis=alt.Axis(format="~g", tickCount=5, grid=not log),
            ),
            detail=detail,
        )
    )  # fmt: skip
    if dash:
        both = alt.Scale(domain=["product", "influence"], range=[[1, 0], [2, 3]])
        hues = alt.Scale(domain=["product", "influence"], range=[ARMS[1], ARMS[0]])
        line = line.encode(
            strokeDash=alt.StrokeDash(f"{dash}:N", scale=both),
            color=alt.Color(f"{dash}:N", scale=hues),
        )
    mark = alt.Chart().mark_rule(color=MUTED, strokeDash=[5, 4]).encode(
        x=alt.datum(found.training_length)
    )  # fmt: skip
    shown = alt.layer(line, mark, data=rows).properties(width=_panel_width(rows), height=130)
    return _faceted(shown, rows)


def _faceted(
    chart: alt.Chart | alt.LayerChart | alt.FacetChart,
    rows: pd.DataFrame,
    *,
    independent_x: bool = False,
) -> alt.TopLevelMixin:
    names = list(dict.fromkeys(_names(rows.sort_values("layer"))))
    facets = chart.facet(
        row=alt.Row("prompt:N", title=None, sort=list(dict.fromkeys(rows["prompt"]))),
        column=alt.Column("name:N", title=None, sort=names),
    )
    if independent_x:
        return facets.resolve_scale(x="independent", y="independent")
    return facets.resolve_scale(y="independent")


def _shown_layers(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of at most `MOST_PANELS` layers, evenly spaced, the first and last among them."""
    layers = sorted(rows["layer"].unique())
    if len(layers) > MOST_PANELS:
        at = np.linspace(0, len(layers) - 1, MOST_PANELS).round().astype(int)
        layers = [layers[i] for i in at]
    return pd.DataFrame(rows[rows["layer"].isin(layers)])


def _smooth(found: Inspection, rows: pd.DataFrame) -> pd.DataFrame:
    """Means over buckets of half a training length, in which collapse is looked for."""
    size = max(found.training_length // 2, 1)
    parts = []
    for name in dict.fromkeys(rows["mitigation"]):
        one = rows[rows["mitigation"] == name]
        first, means = in_buckets(
            one["first"].tolist(), one["loss"].tolist(), length=found.length, size=size
        )
        ends = [*first[1:], found.length]
        parts.append(pd.DataFrame({"position": ends, "loss": means, "mitigation": name}))
    return pd.concat(parts)


def _of(rows: pd.DataFrame, prompt: str) -> pd.DataFrame:
    return pd.DataFrame(rows[rows["prompt"] == prompt])


def _panel_width(rows: pd.DataFrame) -> int:
    count = len(set(rows["layer"]))
    return max((WIDTH - 60 * (count - 1)) // max(count, 1), 110)


def _names(rows: pd.DataFrame) -> list[str]:
    return [f"layer {i}, {kind}" for i, kind in zip(rows["layer"], rows["kind"], strict=True)]
