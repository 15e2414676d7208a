"""The figures of a plan: which layers and sizes its arms have, and which levels meet in an arm."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
import pandas as pd

from arch_search.confounds.aliasing import cells_of
from arch_search.confounds.layouts import placed_cells
from arch_search.factors import Cell, key, levels_of
from arch_search.plan_spec import ArmSpec, Plan
from arch_search.wording import shown_value
from dashboards.figures import row_axis
from dashboards.palette import INK, MUTED, SHADE, mixer_colours

ROW, CELL = 24, 15  # pixels of an arm and of a layer
LEGEND_ENTRY = 90
STRIP, PANEL = 400, 110  # of all layers at most; of a panel of sizes
MOST_CROSSINGS = 6
MOST_LABELS = 16  # numbers of layers
APART = 1.5  # largest over smallest: beyond, sizes are drawn as ratios on a logarithmic axis
STATE = "state_elements"
SIZES = {
    "parameters": "parameters",
    STATE: "state elements",
    "forward_flops_per_token": "FLOPs a token",
}


def arms_chart(plan: Plan) -> alt.TopLevelMixin:
    """One row an arm: its layers by mixer, then each size over the baseline's."""
    return alt.hconcat(
        _strip(plan.arms),
        *(_size_panel(plan, name, title) for name, title in SIZES.items()),
        spacing=12,
    ).resolve_scale(color="independent")


def _strip(arms: Sequence[ArmSpec]) -> alt.Chart:
    rows = pd.DataFrame(
        [
            {"arm": arm.name, "layer": i, "mixer": layer.kind}
            for arm in arms
            for i, layer in enumerate(arm.model.layers)
        ]
    )
    kinds, names = list(dict.fromkeys(rows["mixer"])), [arm.name for arm in arms]
    colours, layers = mixer_colours(kinds), max(len(arm.model.layers) for arm in arms)
    width = min(CELL * layers, STRIP)
    every = next(step for step in (1, 2, 4, 8, 16) if layers / step <= MOST_LABELS)
    axis = alt.Axis(labelAngle=0, domain=False, ticks=False, values=list(range(0, layers, every)))
    return (
        alt.Chart(rows)
        .mark_rect(stroke="white", strokeWidth=1)
        .encode(
            x=alt.X("layer:O", title="layer", axis=axis),
            y=alt.Y("arm:N", sort=names, title=None, axis=row_axis(names)),
            color=alt.Color(
                "mixer:N",
                scale=alt.Scale(domain=kinds, range=[colours[kind] for kind in kinds]),
                legend=alt.Legend(
                    symbolType="square",
                    symbolSize=120,
                    symbolStrokeWidth=0,
                    columns=max(width // LEGEND_ENTRY, 1),
                ),
            ),
        )
        .properties(width=width, height=ROW * len(arms))
    )


def _size_panel(plan: Plan, name: str, title: str):
    """Each arm's size over the baseline's: as a difference, or as a ratio where sizes are wide."""
    base = baseline_of(plan).counts[name] or 1
    shares = [arm.counts[name] / base for arm in plan.arms]
    wide = min(shares) > 0 and max(shares) > APART * min(shares)
    same = 1.0 if wide else 0.0
    at = [share - 1.0 + same for share in shares]
    rows = pd.DataFrame(
        {
            "arm": [arm.name for arm in plan.arms],
            "at": at,
            "text": [short_count(arm.counts[name]) for arm in plan.arms],
        }
    )
    reach = 1.15 * max(*map(abs, at), 0.01)
    if wide:
        scale = alt.Scale(type="log", nice=False, padding=8)
        axis = alt.Axis(tickCount=3, format="~g", labelOverlap=True, grid=False)
    else:
        scale = alt.Scale(domain=[-reach, reach], nice=False)
        axis = alt.Axis(tickCount=3, labelExpr=_SIGNED, labelOverlap=True, grid=False)
    x = alt.X("at:Q", title=[title, f"{'times' if wide else 'over'} baseline"], scale=scale)
    x = x.axis(axis)
    y = alt.Y("arm:N", sort=[arm.name for arm in plan.arms], title=None, axis=None)
    points, zero = alt.Chart(rows).encode(x=x, y=y), alt.Chart(pd.DataFrame({"at": [same]}))
    return alt.layer(
        zero.mark_rule(color=MUTED, strokeDash=[4, 4]).encode(x=x),
        points.mark_rule(color=MUTED).encode(x2=alt.datum(same)),
        points.mark_point(filled=True, size=55, opacity=1, color="#0072b2"),
        alt.Chart(rows)
        .mark_text(align="left", fontSize=11, color=INK)
        .encode(x=alt.value(PANEL + 6), y=y, text="text:N"),
    ).properties(width=PANEL, height=ROW * len(plan.arms))


_SIGNED = "datum.value ? format(datum.value, '+~%') : '0 %'"


def short_count(value: float) -> str:
    """Three digits and a unit: 407 M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("K", 1e3)):
        if value >= 0.9995 * size:
            return f"{value / size:.3g} {unit}"
    return f"{value:g}"


def baseline_of(plan: Plan) -> ArmSpec:
    """The arm marked as the baseline, or the first one."""
    return next((arm for arm in plan.arms if arm.is_baseline), plan.arms[0])


@dataclass(frozen=True, kw_only=True, slots=True)
class Crossing:
    """Two factors, and in how many cells each pair of their levels meets."""

    where: str  # what they are factors of; empty for the file's own
    one: str
    other: str
    cells: tuple[Cell, ...]

    @property
    def missing(self) -> int:
        """Pairs of levels that no arm has."""
        there = {(key(cell[self.one]), key(cell[self.other])) for cell in self.cells}
        pairs = len(levels_of(self.cells, self.one)) * len(levels_of(self.cells, self.other))
        return pairs - len(there)


def crossings(plan: Plan) -> list[Crossing]:
    """Pairs of factors that take several levels each: those with gaps first, six at most."""
    own = [cell for cell in cells_of(plan.arms) if "arm" not in cell]
    read = placed_cells(plan.arms)
    found = [
        *_pairs("", own),
        *(pair for where, cells in read.items() for pair in _pairs(where, cells)),
    ]
    return sorted(found, key=lambda pair: not pair.missing)[:MOST_CROSSINGS]


def _pairs(where: str, cells: Sequence[Cell]) -> list[Crossing]:
    names = dict.fromkeys(name for cell in cells for name in cell)
    pairs = []
    for one, other in itertools.combinations(names, 2):
        both = tuple(cell for cell in cells if one in cell and other in cell)
        if all(len(levels_of(both, name)) > 1 for name in (one, other)):
            pairs.append(Crossing(where=where, one=one, other=other, cells=both))
    return pairs


def crossings_chart(found: Sequence[Crossing]) -> alt.TopLevelMixin:
    """A grid a pair of factors: how many arms have both levels; empty where none does."""
    return alt.concat(*map(_grid, found), columns=3, spacing=34)


def _grid(pair: Crossing):
    counts = Counter((key(cell[pair.one]), key(cell[pair.other])) for cell in pair.cells)
    ones, others = levels_of(pair.cells, pair.one), levels_of(pair.cells, pair.other)
    rows = pd.DataFrame(
        [
            {"one": shown_value(a), "other": shown_value(b), "arms": counts[key(a), key(b)]}
            for a, b in itertools.product(ones, others)
        ]
    )
    rows["text"] = [_arms_text(count) for count in rows["arms"]]
    flat = alt.Axis(labelAngle=0, labelLimit=110, domain=False, ticks=False, labelColor=INK)
    base = alt.Chart(rows).encode(
        x=alt.X("one:N", sort=[*map(shown_value, ones)], title=pair.one, axis=flat),
        y=alt.Y("other:N", sort=[*map(shown_value, others)], title=pair.other, axis=flat),
    )
    fill = alt.condition("datum.arms > 0", alt.value("#a9c8e3"), alt.value(SHADE))
    ink = alt.condition("datum.arms > 0", alt.value(INK), alt.value(MUTED))
    gaps = f"{pair.missing} of {len(rows)} pairs in no arm" if pair.missing else "all pairs there"
    heading = [pair.where, gaps] if pair.where else [gaps]
    return alt.layer(
        base.mark_rect(stroke="white", strokeWidth=3, cornerRadius=4).encode(color=fill),
        base.mark_text(fontSize=12).encode(text="text:N", color=ink),
    ).properties(width=max(96 * len(ones), 150), height=38 * len(others), title=heading)


def _arms_text(count: int) -> str:
    return "none" if not count else f"{count} arm" + ("s" if count > 1 else "")
