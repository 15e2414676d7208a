"""The figures of a sweep's report."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from arch_search.metric_names import label
from arch_search.search.outcome import front, importances, values_of
from arch_search.search.trials import Trial
from arch_search.sweep_spec import SweepSpec
from dashboards.palette import INK, MUTED

WIDTH = 760
STATES = {"COMPLETE": "#0072b2", "PRUNED": "#c58a00", "FAIL": "#aa4499", "RUNNING": MUTED}


def score_table(sweep: SweepSpec, trials: Sequence[Trial]) -> pd.DataFrame:
    """One row a trial and rung: its objectives there, and how the trial ended."""
    best = {trial.number for trial in front(sweep, trials)}
    rows: list[dict[str, Any]] = []
    for trial in trials:
        for rung, found in sorted(trial.outcomes.items()):
            if found.failed:
                continue
            values = dict(zip(sweep.objectives, values_of(sweep, trial, rung), strict=True))
            rows.append(
                {
                    "trial": trial.name,
                    "number": trial.number,
                    "layout": trial.arm.layout,
                    "rung": rung,
                    "tokens": trial.run(sweep, rung).spec.train.tokens,
                    "state": trial.state,
                    "last": rung == max(trial.outcomes),
                    "immune": "never pruned" if trial.immune else "judged",
                    "front": trial.number in best and rung == len(sweep.rungs) - 1,
                    **{f"objective {i}": value for i, value in enumerate(values.values())},
                }
            )
    return pd.DataFrame(rows)


def front_chart(sweep: SweepSpec, table: pd.DataFrame) -> alt.TopLevelMixin:
    """Each trial where it ended; the front's members joined. Pruned ones at their rung's score."""
    names = list(sweep.objectives)
    y = alt.Y("objective 0:Q", title=label(names[0]), scale=alt.Scale(zero=False))
    if len(names) > 1:
        x = alt.X("objective 1:Q", title=label(names[1]), scale=alt.Scale(zero=False))
    else:
        x = alt.X("number:Q", title="trial")
    base = alt.Chart(table.query("last"))
    points = base.mark_point(size=70, strokeWidth=2).encode(
        x=x, y=y, color=_state(), shape=alt.Shape("immune:N", legend=alt.Legend(title=None))
    )
    members = alt.Chart(table.query("front"))
    filled = members.mark_point(size=70, filled=True, color=STATES["COMPLETE"])
    names_at = members.mark_text(dx=8, dy=-8, align="left", color=INK)
    layers: list[alt.Chart] = [points, filled.encode(x, y), names_at.encode(x, y, text="trial:N")]
    if len(names) > 1:
        layers.insert(0, members.mark_line(color=MUTED, strokeDash=[4, 3]).encode(x, y))
    return alt.layer(*layers).properties(width=WIDTH, height=340)


def rung_chart(sweep: SweepSpec, table: pd.DataFrame) -> alt.TopLevelMixin:
    """Every trial's scores over its rungs."""
    name = next(iter(sweep.objectives))
    return (
        alt.Chart(table)
        .mark_line(point=True, opacity=0.75)
        .encode(
            x=alt.X("tokens:Q", title="tokens", scale=alt.Scale(type="log"),
                    axis=alt.Axis(format="~s", values=sorted(set(table["tokens"])))),
            y=alt.Y("objective 0:Q", title=label(name), scale=alt.Scale(zero=False)),
            detail="trial:N",
            color=_state(),
            strokeDash=alt.StrokeDash("immune:N", legend=alt.Legend(title=None)),
        )
        .properties(width=WIDTH, height=300)
    )  # fmt: skip


def importance_chart(sweep: SweepSpec, trials: Sequence[Trial]) -> alt.TopLevelMixin | None:
    """The share of the first rung's variance that each parameter explains by itself."""
    name = next((n for n in sweep.objectives if not n.startswith("count/")), None)
    found = importances(sweep, trials, name) if name else []
    if not found:
        return None
    rows = pd.DataFrame(
        {"parameter": f"{one.parameter} (n = {one.n})", "share": one.share} for one in found
    )
    return (
        alt.Chart(rows)
        .mark_bar(color=STATES["COMPLETE"], size=14)
        .encode(
            x=alt.X("share:Q", title="share of variance explained alone",
                    axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
            y=alt.Y("parameter:N", sort=None, title=None),
        )
        .properties(width=WIDTH - 200, height=alt.Step(24))
    )  # fmt: skip


def slice_chart(sweep: SweepSpec, trials: Sequence[Trial]) -> alt.ConcatChart | None:
    """Each parameter against the first rung's score, one panel a parameter."""
    name = next(iter(sweep.objectives))
    panels = []
    for parameter in dict.fromkeys(p for trial in trials for p in trial.params):
        rows = pd.DataFrame(
            {"value": trial.params[parameter], "score": values_of(sweep, trial, 0)[0],
             "state": trial.state}
            for trial in trials
            if parameter in trial.params and 0 in trial.outcomes and not trial.outcomes[0].failed
        )  # fmt: skip
        if rows.empty:
            continue
        kind = "Q" if pd.api.types.is_float_dtype(rows["value"]) else "N"
        panels.append(
            alt.Chart(rows, title=parameter)
            .mark_point(size=36)
            .encode(
                x=alt.X(f"value:{kind}", title=None, axis=alt.Axis(labelAngle=0),
                        scale=alt.Scale(zero=False) if kind == "Q" else alt.Undefined),
                y=alt.Y("score:Q", title=label(name), scale=alt.Scale(zero=False)),
                color=_state(),
            )
            .properties(width=200, height=140)
        )  # fmt: skip
    return alt.concat(*panels, columns=3) if panels else None


def parallel_chart(sweep: SweepSpec, trials: Sequence[Trial]) -> alt.TopLevelMixin | None:
    """A line a trial through all its parameters to its first rung's score."""
    scored = [t for t in trials if 0 in t.outcomes and not t.outcomes[0].failed]
    names = list(dict.fromkeys(p for trial in scored for p in trial.params))
    if not names or len(scored) < 2:
        return None
    columns: dict[str, dict[int, Any]] = {
        name: {t.number: t.params[name] for t in scored if name in t.params} for name in names
    }
    for i, name in enumerate(sweep.objectives):
        columns[label(name)] = {t.number: values_of(sweep, t, 0)[i] for t in scored}
    states = {t.number: t.state for t in scored}
    rows = [
        {"axis": name, "trial": number, "at": at, "state": states[number]}
        for name, column in columns.items()
        for number, at in _scaled(column).items()
    ]
    return (
        alt.Chart(pd.DataFrame(rows))
        .mark_line(opacity=0.55)
        .encode(
            x=alt.X("axis:N", sort=list(columns), title=None, axis=alt.Axis(labelAngle=-30)),
            y=alt.Y("at:Q", title="lowest to highest, or by name", axis=alt.Axis(labels=False)),
            detail="trial:N",
            color=_state(),
        )
        .properties(width=WIDTH, height=260)
    )


def _scaled(column: dict[int, Any]) -> dict[int, float]:
    """Values between 0 and 1: numbers by size, names by their order."""
    values = list(column.values())
    if any(isinstance(value, str | bool) or value is None for value in values):
        order = sorted({str(value) for value in values})
        column = {number: order.index(str(value)) for number, value in column.items()}
    low, high = min(column.values()), max(column.values())
    return {number: (value - low) / ((high - low) or 1) for number, value in column.items()}


def _state() -> alt.Color:
    scale = alt.Scale(domain=list(STATES), range=list(STATES.values()))
    return alt.Color("state:N", scale=scale, legend=alt.Legend(title=None))
