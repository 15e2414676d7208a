"""What each layer does, by depth: the change of a metric with the layer knocked out."""

import altair as alt
import pandas as pd

from arch_search.metric_names import label
from arch_search.records import Experiment
from dashboards.figures import WIDTH, arm_colour
from dashboards.palette import INK

WAYS = {
    "removed": "mixer removed",
    "reset_each_token": "state reset every token",
    "reset_each_segment": "state reset every segment",
}


def by_depth(experiment: Experiment, table: pd.DataFrame) -> alt.TopLevelMixin:
    """One panel a way: the change by layer; line: mean over seeds, dots: seeds.

    Args:
        table: the evaluation's table `knockout` over all runs. Of several metrics, the one that
            decides is drawn, or the first.
    """
    primary = experiment.plan.primary.metric
    known = list(dict.fromkeys(table["metric"]))
    metric = primary if primary in known else known[0]
    rows = table.loc[table["metric"] == metric]
    rows = rows.drop_duplicates(["arm", "seed", "layer", "way"])  # of two with other options
    ways = [way for way in WAYS if way in set(rows["way"])]
    panels = [_panel(experiment, rows.loc[rows["way"] == way], way, metric) for way in ways]
    return alt.hconcat(*panels)


def _panel(experiment: Experiment, rows: pd.DataFrame, way: str, metric: str):
    wide = (WIDTH - 120) // max(rows["layer"].nunique(), 1)
    colour = arm_colour(experiment, legend=True, symbol="circle")
    base = alt.Chart(rows).encode(
        x=alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0, grid=False)), color=colour
    )
    title = f"change of {label(metric)}"
    zero = alt.Chart(pd.DataFrame({"at": [0.0]})).mark_rule(color=INK).encode(y="at:Q")
    return alt.layer(
        zero,
        base.mark_line(strokeWidth=2).encode(y=alt.Y("mean(change):Q", title=title)),
        base.mark_point(filled=True, size=40, opacity=0.7).encode(y=alt.Y("change:Q", title=title)),
    ).properties(width=min(46, wide) * rows["layer"].nunique(), height=220, title=WAYS[way])
