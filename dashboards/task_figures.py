"""Figures of synthetic tasks: beyond the training length, by size of the state, by depth."""

import altair as alt
import numpy as np
import pandas as pd

from arch_search.metric_names import label
from arch_search.plan_spec import ArmSpec
from arch_search.records import Experiment, table
from dashboards.figures import MANY_ARMS, WIDTH, arm_colour, arm_order
from dashboards.palette import ARMS, INK, MUTED, POWERS_OF_TWO, mixer_colours

ENOUGH = 0.99  # the accuracy at which a state counts as large enough, as in Zoology
DEPTHS = 10  # rows of a heat map
POINTS = 128  # of a line over positions
MEASURES = {  # by position: the axis's title, the panel's
    "accuracy": ("accuracy", "At each position"),
    "sequence_accuracy": ("share of sequences", "Everything right up to a position"),
}


def draw_tasks(experiment: Experiment) -> dict[str, alt.TopLevelMixin | None]:
    """By name, those for which the records hold something."""
    charts: dict[str, alt.TopLevelMixin | None] = {}
    positions = table(experiment, "by_position")
    if not positions.empty and len(set(positions["position"])) > 2:
        charts["sequences"] = by_position(experiment, positions)
    sizes = state_sizes(experiment, experiment.plan.primary.metric)
    if sizes.drop_duplicates(["mixer", "state_bytes"])["mixer"].duplicated().sum() > 0:
        charts["states"] = by_state(sizes, experiment.plan.primary.metric)
    answers = table(experiment, "answers")
    if not answers.empty and not answers.dropna(subset=["depth"]).empty:
        charts["depths"] = by_depth_and_length(experiment, answers)
    recent = within_reach(experiment, answers)
    if len(set(recent["within"])) > 1:
        charts["distances"] = by_distance(experiment, recent)
    return charts


def by_position(experiment: Experiment, positions: pd.DataFrame):
    """Accuracy at each position, and of the whole sequence up to it. Mean over seeds.

    With many arms a panel for each, with both in it; else a panel for each, with all arms in it.
    """
    training = experiment.baseline.data.sequence_length
    width = -(-max(positions["position"].tolist()) // POINTS)
    middle = ((positions["position"] - 1) // width + 0.5) * width + 0.5  # positions begin at 1
    pooled = positions.assign(position=middle)
    rows = {kind: _means(pooled, ["arm", "position"], kind) for kind in MEASURES}
    mark = alt.Chart(pd.DataFrame({"at": [training]})).mark_rule(color=INK, strokeDash=[4, 4])
    x = alt.X("position:Q", title="position (tokens)", scale=alt.Scale(nice=False))
    if len(experiment.plan.arms) > MANY_ARMS:
        return _panels_by_position(experiment, rows, x)
    panels = [
        alt.layer(
            alt.Chart(rows[kind])
            .mark_line(strokeWidth=2)
            .encode(
                x=x,
                y=alt.Y("mean:Q", title=title, scale=alt.Scale(domain=[0, 1])),
                color=arm_colour(experiment, legend=True),
            ),
            mark.encode(x="at:Q"),
        ).properties(width=(WIDTH - 150) // 2, height=260, title=heading)
        for kind, (title, heading) in MEASURES.items()
    ]
    return alt.hconcat(*panels, spacing=40)


def _panels_by_position(experiment: Experiment, rows: dict[str, pd.DataFrame], x: alt.X):
    order, training = arm_order(experiment), experiment.baseline.data.sequence_length
    titles = ["accuracy at each position", "share of sequences that are right up to it"]
    named = [rows[kind].assign(what=title) for kind, title in zip(MEASURES, titles, strict=True)]
    data = pd.concat(named).assign(training=training)
    shown = alt.Color(
        "what:N",
        scale=alt.Scale(domain=titles, range=[INK, ARMS[0]]),
        legend=alt.Legend(symbolType="stroke", symbolSize=220, labelLimit=400),
    )
    y = alt.Y("mean:Q", title=None, scale=alt.Scale(domain=[0, 1]))
    line = alt.Chart().mark_line(strokeWidth=2).encode(x=x, y=y, color=shown)
    rule = alt.Chart().mark_rule(color=INK, strokeDash=[4, 4]).encode(x="min(training):Q")
    panel = alt.Facet("arm:N", sort=order, title=None)
    layers = alt.layer(line, rule, data=data).properties(width=195, height=90)
    return layers.facet(panel, columns=4)


def state_sizes(experiment: Experiment, metric: str) -> pd.DataFrame:
    """Each run with an accuracy: columns mixer, arm, seed, state_bytes, value."""
    rows = [
        (_mixer(run.arm), run.arm.name, run.planned.seed, _state_bytes(run.arm), value)
        for run in experiment.trained
        if "accuracy" in metric and (value := run.metrics.get(metric)) is not None
    ]
    return pd.DataFrame(rows, columns=["mixer", "arm", "seed", "state_bytes", "value"])


def by_state(sizes: pd.DataFrame, metric: str):
    """The best arm of each mixer and state size, mean over seeds; dots: runs.

    Dashed, in a mixer's colour: its smallest state with an accuracy of 0.99.
    """
    means = _means(sizes, ["mixer", "arm", "state_bytes"], "value")
    best = means.groupby(["mixer", "state_bytes"])["mean"].agg(["max"]).reset_index()
    large = best.query("max >= @ENOUGH")
    enough = large.groupby("mixer")["state_bytes"].agg(["min"]).reset_index()
    kinds = list(dict.fromkeys(sizes["mixer"]))
    colours = mixer_colours(kinds, lines=True)
    colour = alt.Color(
        "mixer:N",
        scale=alt.Scale(domain=kinds, range=[colours[kind] for kind in kinds]),
        legend=alt.Legend(symbolType="circle", symbolOpacity=1, symbolStrokeWidth=0),
    )
    x = alt.X(
        "state_bytes:Q",
        title="state of the model (bytes, at the training length)",
        scale=alt.Scale(type="log", base=2, nice=False, padding=14),
        axis=alt.Axis(labelExpr=POWERS_OF_TWO, grid=False, labelOverlap=True),
    )
    range_ = alt.Scale(domain=[0, 1])
    line, dots = (alt.Y(c, title=label(metric), scale=range_) for c in ("max:Q", "value:Q"))
    return alt.layer(
        alt.Chart(best).mark_line(strokeWidth=2).encode(x=x, y=line, color=colour),
        alt.Chart(sizes)
        .mark_point(filled=True, size=50, opacity=0.6)
        .encode(x=x, y=dots, color=colour),
        alt.Chart(enough).mark_rule(strokeDash=[4, 4]).encode(x="min:Q", color=colour),
    ).properties(width=WIDTH - 300, height=320)


def _means(rows: pd.DataFrame, by: list[str], value: str) -> pd.DataFrame:
    """Column `mean` for each combination of `by`."""
    return rows.groupby(by)[value].agg(["mean"]).reset_index()


def _state_bytes(arm: ArmSpec) -> float:
    return arm.counts.get("state_bytes", 4 * arm.counts["state_elements"])


def _mixer(arm: ArmSpec) -> str:
    """The kinds of its mixers, in order of appearance."""
    return ", ".join(dict.fromkeys(layer.kind for layer in arm.model.layers))


def by_depth_and_length(experiment: Experiment, answers: pd.DataFrame):
    """A heat map an arm and label: the share of strictly right answers by depth and length."""
    rows = answers.dropna(subset=["depth"])
    row = np.minimum((rows["depth"].to_numpy(float) * DEPTHS).astype(int), DEPTHS - 1)
    rows = rows.assign(
        depth=(100 * (row + 0.5) / DEPTHS).round().astype(int),
        panel=rows["arm"] + ": " + rows["label"],
    )
    cells = _means(rows, ["panel", "length", "depth"], "strict")
    labels = list(dict.fromkeys(rows["label"]))
    order = [f"{arm}: {name}" for arm in arm_order(experiment) for name in labels]
    return (
        alt.Chart(cells)
        .mark_rect(stroke="white")
        .encode(
            x=alt.X("length:O", title="tokens", axis=alt.Axis(labelAngle=0, labelColor=MUTED)),
            y=alt.Y("depth:O", title="depth of what is asked (%)"),
            color=alt.Color(
                "mean:Q",
                title="right",
                scale=alt.Scale(domain=[0, 1], range=["#f3efe6", "#0072b2"]),
            ),
            facet=alt.Facet("panel:N", title=None, columns=4, sort=order),
        )
        .properties(width=180, height=180)
    )


def within_reach(experiment: Experiment, answers: pd.DataFrame) -> pd.DataFrame:
    """The share of right answers where what is asked stood in the last so many tokens.

    Columns panel, length, within, mean, prompts; `within` are a quarter of the training length,
    doubled up to the greatest length. What is lost though it stands near is lost by collapse, not
    by distance (arXiv 2410.07145).
    """
    columns = ["panel", "length", "within", "mean", "prompts"]
    if answers.empty or "distance" not in answers or answers["distance"].dropna().empty:
        return pd.DataFrame(columns=columns)
    rows = answers.dropna(subset=["distance"])
    rows = rows.assign(panel=rows["arm"] + ": " + rows["label"])
    reach, found = max(experiment.baseline.data.sequence_length // 4, 1), []
    while True:
        near = rows[rows["distance"].astype(float) <= reach]
        cells = near.groupby(["panel", "length"])["strict"].agg(["mean", "size"]).reset_index()
        found.append(cells.rename(columns={"size": "prompts"}).assign(within=reach))
        if len(near) == len(rows):
            return pd.concat(found, ignore_index=True).reindex(columns=columns)
        reach *= 2


def by_distance(experiment: Experiment, recent: pd.DataFrame):
    """A panel an arm and label, a line for each reach, by the length of the whole prompt."""
    order = [panel for arm in arm_order(experiment) for panel in dict.fromkeys(recent["panel"])
             if panel.startswith(f"{arm}: ")]  # fmt: skip
    return (
        alt.Chart(recent)
        .mark_line(point=True, strokeWidth=2)
        .encode(
            x=alt.X("length:O", title="tokens", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("mean:Q", title="right", scale=alt.Scale(domain=[0, 1])),
            color=alt.Color(
                "within:O", title="in the last … tokens", scale=alt.Scale(scheme="blues")
            ),
            facet=alt.Facet("panel:N", title=None, columns=4, sort=order),
        )
        .properties(width=180, height=160)
    )
