"""Panels of an inspection's figures: positions, layers and prompts laid out alike in all."""

import altair as alt
import numpy as np
import pandas as pd

from arch_search.state_analysis.collapse import in_buckets
from arch_search.state_analysis.inspection import Inspection
from dashboards.palette import ARMS, MUTED

WIDTH = 900
MOST_PANELS = 6  # of layers, evenly spaced; tables hold all


def position_axis(found: Inspection, *, log: bool = True) -> alt.X:
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


def length_rule(found: Inspection) -> alt.Chart:
    mark = pd.DataFrame({"position": [found.training_length]})
    return alt.Chart(mark).mark_rule(color=MUTED, strokeDash=[5, 4]).encode(x="position:Q")


def layer_panels(
    found: Inspection, rows: pd.DataFrame, title: str, *, log: bool = False,
    dash: str | None = None,
) -> alt.TopLevelMixin:  # fmt: skip
    """A column of panels a layer (some of them), a row a prompt, a line a head."""
    rows = shown_layers(rows)
    rows = rows.assign(name=layer_names(rows), head=rows["head"].astype(str))
    finite = np.isfinite(rows["value"].to_numpy(dtype=float))
    rows = pd.DataFrame(rows[finite & ((rows["value"] > 0) | (not log))])
    detail = ["head:N", *(["part:N"] if "part" in rows else [])]
    line = (
        alt.Chart()
        .mark_line(strokeWidth=1.2, opacity=0.65, color=ARMS[1])
        .encode(
            x=position_axis(found),
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
    shown = alt.layer(line, mark, data=rows).properties(width=panel_width(rows), height=130)
    return layer_facets(shown, rows)


def layer_facets(
    chart: alt.Chart | alt.LayerChart | alt.FacetChart,
    rows: pd.DataFrame,
    *,
    independent_x: bool = False,
) -> alt.TopLevelMixin:
    names = list(dict.fromkeys(layer_names(rows.sort_values("layer"))))
    facets = chart.facet(
        row=alt.Row("prompt:N", title=None, sort=list(dict.fromkeys(rows["prompt"]))),
        column=alt.Column("name:N", title=None, sort=names),
    )
    if independent_x:
        return facets.resolve_scale(x="independent", y="independent")
    return facets.resolve_scale(y="independent")


def shown_layers(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of at most `MOST_PANELS` layers, evenly spaced, the first and last among them."""
    layers = sorted(rows["layer"].unique())
    if len(layers) > MOST_PANELS:
        at = np.linspace(0, len(layers) - 1, MOST_PANELS).round().astype(int)
        layers = [layers[i] for i in at]
    return pd.DataFrame(rows[rows["layer"].isin(layers)])


def smoothed(found: Inspection, rows: pd.DataFrame) -> pd.DataFrame:
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


def of_prompt(rows: pd.DataFrame, prompt: str) -> pd.DataFrame:
    return pd.DataFrame(rows[rows["prompt"] == prompt])


def panel_width(rows: pd.DataFrame) -> int:
    count = len(set(rows["layer"]))
    return max((WIDTH - 60 * (count - 1)) // max(count, 1), 110)


def layer_names(rows: pd.DataFrame) -> list[str]:
    return [f"layer {i}, {kind}" for i, kind in zip(rows["layer"], rows["kind"], strict=True)]
