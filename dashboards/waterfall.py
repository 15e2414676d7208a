"""A waterfall: what each step of a declared chain of arms is worth, from the first to the last."""

import itertools
from typing import Any

import altair as alt
import pandas as pd

from arch_search.chains import declared_chains
from arch_search.compare import Comparison
from arch_search.metric_names import direction, label
from arch_search.records import Experiment
from arch_search.wording import signed
from dashboards.figures import WIDTH, row_axis
from dashboards.palette import BASELINE, FINDINGS, INK, MUTED


def waterfall(experiment: Experiment, comparison: Comparison) -> alt.TopLevelMixin | None:
    """A panel for each chain: its first arm, every step with its interval, and the last arm."""
    chains = declared_chains(experiment.plan.contrasts)
    tables = [_steps(comparison, arms, names) for arms, names in chains.values()]
    panels = [_panel(table, comparison) for table in tables if table is not None]
    return alt.vconcat(*panels, spacing=30) if panels else None


def _steps(
    comparison: Comparison, arms: tuple[str, ...], names: tuple[str, ...]
) -> pd.DataFrame | None:
    """One row an end or step: start, end, low, high, finding, said. None: a step is not known.

    Both ends of a step are sums of estimates, so that the last arm stands where all steps lead.
    """
    outcomes = {contrast.name: contrast for contrast in comparison.contrasts}
    chosen = [outcomes[name] for name in names]
    first = next(arm.mean for arm in comparison.arms if arm.arm == arms[0])
    whole = chosen[-1].value
    if first is None or whole is None or any(c.low is None or c.value is None for c in chosen):
        return None
    assert chosen[-1].low is not None
    assert chosen[-1].high is not None
    is_known = chosen[-1].low > 0 or chosen[-1].high < 0  # else a share of it says nothing
    rows = [_end(arms[0], first)]
    at, better = first, direction(comparison.metric) or -1
    for (_, arm), contrast in zip(itertools.pairwise(arms), chosen[:-1], strict=True):
        assert contrast.value is not None
        assert contrast.low is not None
        assert contrast.high is not None
        resolved = contrast.low > 0 or contrast.high < 0
        found = "better" if contrast.value * better > 0 else "worse"
        share = f"  ({100 * contrast.value / whole:.0f} %)" if is_known else ""
        rows.append(
            {
                "step": f"+ {arm}",
                "start": at,
                "end": at + contrast.value,
                "low": at + contrast.low,
                "high": at + contrast.high,
                "finding": found if resolved else "open",
                "said": f"{signed(contrast.value)}{share}",
            }
        )
        at += contrast.value
    return pd.DataFrame([*rows, _end(arms[-1], at)])


def _end(arm: str, value: float) -> dict[str, Any]:
    return {"step": arm, "start": value, "end": value, "finding": "end", "said": f"{value:.4f}"}


def _panel(table: pd.DataFrame, comparison: Comparison) -> alt.LayerChart | alt.FacetChart:
    better = {-1: " (lower is better)", 1: " (higher is better)", 0: ""}
    title = f"{label(comparison.metric)}{better[direction(comparison.metric)]}"
    y = alt.Y("step:N", sort=list(table["step"]), title=None, axis=row_axis())
    scale = alt.Scale(zero=False, padding=14)
    colours = {**FINDINGS, "end": BASELINE}
    colour = alt.Color(
        "finding:N",
        scale=alt.Scale(domain=list(colours), range=list(colours.values())),
        legend=None,
    )
    base = alt.Chart(table).encode(y=y)
    ends, steps = alt.datum["finding"] == "end", alt.datum["finding"] != "end"
    x = alt.X("start:Q", title=title, scale=scale, axis=alt.Axis(tickCount=7))
    return alt.layer(
        base.mark_bar(height=18).encode(x=x, x2="end:Q", color=colour).transform_filter(steps),
        base.mark_rule(strokeWidth=1.5, color=INK)
        .encode(x="low:Q", x2="high:Q")
        .transform_filter(steps),
        base.mark_point(size=90, filled=True, opacity=1)
        .encode(x=alt.X("end:Q", scale=scale), color=colour)
        .transform_filter(ends),
        base.mark_tick(thickness=2, size=26, color=MUTED).encode(x="end:Q").transform_filter(steps),
        base.mark_text(align="left", fontSize=12, color=INK).encode(
            x=alt.value(WIDTH - 330), text="said:N"
        ),
    ).properties(width=WIDTH - 340, height=alt.Step(32))
