"""Figures of what the comparison rests on: contrasts, interactions, all metrics, noise, costs."""

from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd
from scipy import stats

from arch_search.compare import Comparison
from arch_search.documents import DocumentDifference
from arch_search.factorial import interaction_means
from arch_search.metric_names import direction, label
from arch_search.records import Experiment
from arch_search.regressions import MetricEffect
from arch_search.statistics.linear import Fit
from dashboards.figures import WIDTH, arm_colour, arm_order, row_axis
from dashboards.palette import ARMS, FINDINGS, INK, MUTED, SHADE, arm_shapes

_SHOWN_PAIRS = 3


def contrasts(comparison: Comparison) -> alt.TopLevelMixin | None:
    """Each declared contrast with its interval; grey: too small to be seen four times in five."""
    rows = pd.DataFrame(
        [
            {"contrast": c.name, "value": c.value, "low": c.low, "high": c.high,
             "least": -(c.resolvable or 0), "most": c.resolvable or 0,
             "finding": c.verdict.split(":")[0]}
            for c in comparison.contrasts
            if c.low is not None
        ]
    )  # fmt: skip
    if rows.empty:
        return None
    y = alt.Y("contrast:N", sort=list(rows["contrast"]), title=None, axis=row_axis())
    x = alt.Scale(zero=True, nice=False, padding=14)
    way = {-1: " (lower is better)", 1: " (higher is better)", 0: ""}[direction(comparison.metric)]
    title = f"contrast in {label(comparison.metric)}{way}"
    base = alt.Chart(rows)
    return alt.layer(
        base.mark_bar(color=SHADE, height=24).encode(
            x=alt.X("least:Q", title=title, scale=x, axis=alt.Axis(tickCount=6)),
            x2="most:Q",
            y=y,
        ),
        _zero("x"),
        base.mark_rule(strokeWidth=2.5, color=INK).encode(x="low:Q", x2="high:Q", y=y),
        base.mark_point(size=90, filled=True, opacity=1, color=INK).encode(x="value:Q", y=y),
        base.mark_text(align="left", fontSize=12, color=INK).encode(
            x=alt.value(WIDTH - 330), y=y, text="finding:N"
        ),
    ).properties(width=WIDTH - 340, height=alt.Step(36))


def interactions(
    experiment: Experiment, fit: Fit, comparison: Comparison
) -> alt.TopLevelMixin | None:
    """Means of each combination of two factors; lines that are not parallel do not add up.

    Only pairs whose interaction these arms can tell: for others the picture would say nothing.
    """
    pairs = [(t.factors[0], t.factors[1]) for t in comparison.factors if len(t.factors) == 2]
    pairs.sort(key=lambda pair: set(pair) != {"count", "position"})  # above all
    title = f"{label(comparison.metric)}, minus {fit.arms[0]}"
    drawn = [
        _interaction(interaction_means(experiment.plan.arms, fit, pair), pair, title)
        for pair in pairs[:_SHOWN_PAIRS]
    ]
    if not drawn:
        return None
    return alt.hconcat(*drawn, spacing=40).resolve_scale(color="independent")


def _interaction(
    means: pd.DataFrame, pair: tuple[str, str], title: str
) -> alt.LayerChart | alt.FacetChart:
    # Vega-Lite counts rows under the name 'count': factors go by neutral names
    means = means.rename(columns={pair[0]: "across", pair[1]: "by"})
    levels = list(dict.fromkeys(means["by"]))
    side = {level: 2 * i / max(len(levels) - 1, 1) - 1 for i, level in enumerate(levels)}
    means = means.assign(side=[side[level] for level in means["by"]])
    step = 110 if len(set(means["across"])) < 4 else 64
    colour = alt.Color(
        "by:N",
        scale=alt.Scale(domain=levels, range=[ARMS[i % len(ARMS)] for i in range(len(levels))]),
        legend=alt.Legend(title=pair[1], symbolType="stroke"),
    )
    sides = alt.Scale(domain=[-1, 1], range=[0.38 * step, 0.62 * step])
    base = alt.Chart(means).encode(
        x=alt.X(
            "across:N",
            sort=None,
            title=pair[0],
            scale=alt.Scale(padding=0),
            axis=alt.Axis(labelAngle=0),
        ),
        xOffset=alt.XOffset("side:Q", scale=sides),
        color=colour,
    )
    y = alt.Scale(zero=False, padding=8)
    layers = alt.layer(
        _zero("y"),
        base.mark_line(strokeWidth=2, opacity=0.8).encode(y=alt.Y("value:Q", title=title, scale=y)),
        base.mark_rule(strokeWidth=1.5).encode(y="low:Q", y2="high:Q"),
        base.mark_point(size=60, filled=True, opacity=1).encode(y="value:Q"),
    )
    return layers.properties(width=alt.Step(step), height=250, title=f"{pair[0]} x {pair[1]}")


def all_metrics(effects: Sequence[MetricEffect]) -> alt.TopLevelMixin | None:
    """Every metric and arm, in percent of the baseline; what got worse stands out."""
    metrics = list(dict.fromkeys(e.metric for e in effects))
    panels = []
    for metric in metrics:
        rows = pd.DataFrame(
            [{"arm": e.arm, "value": 100 * e.share, "low": 100 * e.low, "high": 100 * e.high,
              "finding": e.finding} for e in effects if e.metric == metric]
        )  # fmt: skip
        y = alt.Y("arm:N", sort=list(rows["arm"]), title=None, axis=row_axis())
        base = alt.Chart(rows).encode(
            y=y,
            color=alt.Color(
                "finding:N",
                scale=alt.Scale(domain=list(FINDINGS), range=list(FINDINGS.values())),
                legend=alt.Legend(symbolType="stroke") if metric == metrics[0] else None,
            ),
        )
        way = "lower" if direction(metric) < 0 else "higher"
        x = alt.X("low:Q", title=f"% of the baseline ({way} is better)", scale=alt.Scale(zero=True))
        panels.append(
            alt.layer(
                _zero("x"),
                base.mark_rule(strokeWidth=2.5).encode(x=x, x2="high:Q"),
                base.mark_point(size=70, filled=True, opacity=1).encode(x="value:Q"),
            ).properties(width=300, height=alt.Step(22), title=label(metric))
        )
    return alt.concat(*panels, columns=2, spacing=30) if len(panels) > 1 else None


def residuals(fit: Fit) -> alt.TopLevelMixin | None:
    """Left: residuals against fitted values. Right: against what normal noise would give."""
    if fit.df < 1 or not fit.residual_sd:
        return None
    runs = fit.runs.sort_values("residual")
    ranks = (np.arange(len(runs)) + 0.5) / len(runs)
    spread = float(np.std(runs["residual"].to_numpy(float)))
    expected = spread * stats.norm.ppf(ranks)
    shown = runs.assign(expected=expected)[["arm", "seed", "fitted", "residual", "expected"]]
    ends = pd.DataFrame({"at": [expected[0], expected[-1]]})
    y = alt.Y("residual:Q", title="residual", scale=alt.Scale(padding=8))
    base = alt.Chart(shown).mark_point(filled=True, size=45, opacity=0.7, color=ARMS[1])
    size = {"width": (WIDTH - 150) // 2, "height": 220}
    near = alt.Scale(zero=False, padding=8)
    left = base.encode(x=alt.X("fitted:Q", title="fitted value", scale=near), y=y)
    right = base.encode(x=alt.X("expected:Q", title="as normal noise would give", scale=near), y=y)
    line = alt.Chart(ends).mark_line(color=MUTED, strokeDash=[4, 4]).encode(x="at:Q", y="at:Q")
    return alt.hconcat(
        alt.layer(_zero("y"), left).properties(title="Residuals", **size),
        alt.layer(line, right).properties(title="Against normal noise", **size),
        spacing=40,
    )


def tradeoffs(
    experiment: Experiment, comparison: Comparison, costs: pd.DataFrame
) -> alt.TopLevelMixin:
    """Quality against each cost, one point an arm.

    Args:
        costs: columns arm, cost (its name, as the axis shows it), amount.
    """
    means = pd.DataFrame(
        [{"arm": o.arm, "value": o.mean, "low": o.mean_low, "high": o.mean_high}
         for o in comparison.arms if o.mean is not None]
    )  # fmt: skip
    joined = costs.merge(means, on="arm")
    names = list(dict.fromkeys(joined["cost"]))
    shapes = arm_shapes(arm_order(experiment), experiment.baseline.name)
    shape = alt.Shape("arm:N", scale=alt.Scale(domain=[*shapes], range=[*shapes.values()]))
    panels = []
    for i, name in enumerate(names):
        base = alt.Chart(joined.loc[joined["cost"] == name]).encode(
            x=alt.X(
                "amount:Q",
                title=name,
                scale=alt.Scale(zero=False, padding=24),
                axis=alt.Axis(format="~s", tickCount=4),
            ),
            color=arm_colour(experiment, legend=True, symbol="circle"),
        )
        title = label(comparison.metric) if i % 2 == 0 else None
        y = alt.Y("value:Q", title=title, scale=alt.Scale(zero=False, padding=12))
        panels.append(
            alt.layer(
                base.mark_rule(strokeWidth=1.5).encode(y=alt.Y("low:Q", title=title), y2="high:Q"),
                base.mark_point(size=80, filled=True, opacity=1).encode(y=y, shape=shape),
            ).properties(width=(WIDTH - 180) // 2, height=240)
        )
    return alt.concat(*panels, columns=2, spacing=30)


def documents(
    experiment: Experiment, each: pd.DataFrame, overall: Sequence[DocumentDifference]
) -> alt.TopLevelMixin:
    """One dot a document, minus the baseline; line: bootstrap over documents of the ratio.

    Args:
        each: from `document_table`.
    """
    order = [one.arm for one in overall]
    rows = pd.DataFrame(
        [{"arm": one.arm, "value": one.value, "low": one.low, "high": one.high} for one in overall]
    )
    y = alt.Y("arm:N", sort=order, title=None, axis=row_axis())
    x = alt.X(
        "difference:Q",
        title="difference in bits per byte, document by document",
        scale=alt.Scale(zero=True),
        axis=alt.Axis(tickCount=8),
    )
    colour = arm_colour(experiment, legend=False)
    size = alt.Size("bytes:Q", scale=alt.Scale(range=[15, 160]), legend=None)
    base = alt.Chart(rows).encode(y=y)
    return alt.layer(
        _zero("x"),
        alt.Chart(each)
        .mark_point(filled=True, opacity=0.35, yOffset=-7)
        .encode(x=x, y=y, size=size, color=colour),
        base.mark_rule(strokeWidth=2.5, color=INK, yOffset=7).encode(x="low:Q", x2="high:Q"),
        base.mark_point(size=60, filled=True, opacity=1, color=INK, yOffset=7).encode(x="value:Q"),
    ).properties(width=WIDTH - 230, height=alt.Step(40))


def _zero(channel: str) -> alt.Chart:
    at = alt.Chart(pd.DataFrame({"at": [0.0]})).mark_rule(color=INK)
    return at.encode(x="at:Q") if channel == "x" else at.encode(y="at:Q")
