"""The house palette and chart style: told apart by colour-blind readers, light, for print.

Hues after Okabe and Ito (2008), darkened where thin lines need it. A mixer keeps its colour in
every report; arms take theirs in the plan's order, and the baseline is always the dark grey.
"""

from collections.abc import Sequence
from typing import Any

INK, MUTED, GRID, PAPER, SHADE = "#1c2733", "#5d6b7a", "#e4e8ec", "#ffffff", "#eef1f4"
BASELINE = "#4a5561"
FONT = "Helvetica Neue, Helvetica, Arial, Liberation Sans, sans-serif"

ARMS = ("#d55e00", "#0072b2", "#009e73", "#aa4499", "#c58a00", "#3fa7d6", "#882255", "#7a8b1a")
SHAPES = ("circle", "square", "triangle-up", "diamond")

FINDINGS = {"better": "#0072b2", "open": "#9aa5b1", "worse": "#d55e00"}

MIXERS = {
    "gated_deltanet": "#a9c8e3",
    "attention": "#27496d",
    "m2rnn": "#e0702a",
    "gru": "#3aa886",
    "rnn": "#b66aa0",
    "mamba2": "#e6b43c",
    "gated_deltaproduct": "#6f9fd0",
}
_LINES = {  # where a mixer's own colour is too pale for a thin line
    "gated_deltanet": "#0072b2",
    "m2rnn": "#d55e00",
    "gru": "#009e73",
    "rnn": "#aa4499",
    "mamba2": "#c58a00",
    "gated_deltaproduct": "#3fa7d6",
}
_OTHER_MIXERS = ("#8c6bb1", "#7a8b1a", "#882255", "#999999")


POWERS_OF_TWO = "datum.value >= 1024 ? (datum.value / 1024) + ' K' : datum.value"
"""A Vega expression that labels an axis of sizes: 512, 1 K, 2 K."""


def arm_colours(arms: Sequence[str], baseline: str) -> dict[str, str]:
    """A colour for each arm; after eight they repeat, and the charts split into panels before."""
    others = [arm for arm in arms if arm != baseline]
    colours = {arm: ARMS[i % len(ARMS)] for i, arm in enumerate(others)}
    return {arm: BASELINE if arm == baseline else colours[arm] for arm in arms}


def arm_shapes(arms: Sequence[str], baseline: str) -> dict[str, str]:
    """A point's shape for each arm, another once the colours repeat."""
    others = [arm for arm in arms if arm != baseline]
    shapes = {arm: SHAPES[i // len(ARMS) % len(SHAPES)] for i, arm in enumerate(others)}
    return {arm: shapes.get(arm, SHAPES[0]) for arm in arms}


def mixer_colours(kinds: Sequence[str], *, lines: bool = False) -> dict[str, str]:
    """A colour for each kind of block, the same in every report for those of the registry.

    Args:
        lines: of thin lines and points, not of areas.
    """
    known = {**MIXERS, **_LINES} if lines else MIXERS
    unknown = [kind for kind in kinds if kind not in MIXERS]
    extra = {kind: _OTHER_MIXERS[i % len(_OTHER_MIXERS)] for i, kind in enumerate(unknown)}
    return {kind: known.get(kind) or extra[kind] for kind in kinds}


def chart_style() -> dict[str, Any]:
    """The Vega-Lite config of every figure."""
    text = {"labelFont": FONT, "titleFont": FONT, "labelColor": MUTED, "titleColor": INK}
    return {
        "background": PAPER,
        "font": FONT,
        "view": {"stroke": None},
        "axis": {
            **text,
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "gridColor": GRID,
            "domainColor": MUTED,
            "tickColor": MUTED,
            "labelPadding": 6,
            "titlePadding": 10,
        },
        "legend": {**text, "labelFontSize": 12, "labelColor": INK, "title": None,
                   "orient": "top", "symbolStrokeWidth": 3, "labelLimit": 320},
        "title": {"font": FONT, "fontSize": 13, "fontWeight": "bold", "color": INK,
                  "anchor": "start", "offset": 12},
        "header": {**text, "labelFontSize": 12, "labelColor": INK, "labelFontWeight": "bold"},
    }  # fmt: skip
