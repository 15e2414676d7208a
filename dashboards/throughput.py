"""The throughput picture: tokens a second against context, and what remains of the first arm's."""

from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from arch_search.files import write_atomic
from arch_search.throughput.record import OK
from dashboards.figures import to_svg
from dashboards.palette import ARMS, BASELINE, INK, POWERS_OF_TWO

DASHES = ([1, 0], [7, 4], [2, 3])  # the colours are gone through once with each
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down")
FAR_APART = 6.0  # fastest over slowest: beyond, speeds are drawn on a logarithmic axis
PANEL = {"width": 430, "height": 320}
SWEEPS = {"context": ("length", "context (tokens)"), "batch": ("batch", "sequences in a batch")}


def write_picture(record: dict[str, Any], path: Path) -> Path:
    """Draw a record's sweeps as one SVG; returns its path."""
    write_atomic(path, to_svg(picture(record)))
    return path


def picture(record: dict[str, Any]) -> alt.TopLevelMixin:
    """Rows: the context sweep, then the batch sweep. Left: speeds. Right: over the first arm's.

    Lines behind points are 95 % bootstrap intervals; a cell that ran out of memory has no point.
    """
    rows = [
        _row(record, sweep)
        for sweep in SWEEPS
        if len({cell[SWEEPS[sweep][0]] for cell in _cells(record, sweep)}) > 1
    ]
    if not rows:
        rows = [_row(record, "")]
    return alt.vconcat(*rows, spacing=34).properties(title=_title(record))


def _cells(record: dict[str, Any], sweep: str) -> list[dict[str, Any]]:
    """The training cells of a sweep that have a speed; without a sweep, the file's own batch."""
    cells = [cell for cell in record["cells"] if cell["kind"] == "train" and cell["state"] == OK]
    if sweep:
        return [cell for cell in cells if sweep in cell["sweeps"]]
    own = record["arms"][record["baseline"]]
    return [c for c in cells if (c["batch"], c["length"]) == (own["batch"], own["length"])]


def _row(record: dict[str, Any], sweep: str) -> alt.HConcatChart:
    column, title = SWEEPS.get(sweep, SWEEPS["context"])
    keys = ("arm", column, "tokens_per_second", "low", "high", "ratio", "ratio_low", "ratio_high")
    table = pd.DataFrame(
        [{k: cell.get(k) for k in keys} for cell in _cells(record, sweep)], columns=list(keys)
    )
    base, others = (
        record["baseline"],
        table.query("arm != @record['baseline']").dropna(subset=["ratio"]),
    )
    speeds = [float(speed) for speed in table["tokens_per_second"]]
    apart = max(speeds, default=0) > FAR_APART * min(speeds, default=0)
    scale = alt.Scale(type="log", nice=False, padding=8) if apart else alt.Scale(zero=True)
    ends = sorted(set(table[column]))
    x = alt.X(
        f"{column}:Q", title=title, scale=alt.Scale(type="log", base=2, nice=False, padding=12),
        axis=alt.Axis(values=ends, grid=False, labelExpr=POWERS_OF_TWO, labelOverlap=True),
    )  # fmt: skip
    left = _lines(
        record, table, x, ("tokens_per_second", "low", "high"), "tokens per second", scale
    )
    one = alt.Chart(pd.DataFrame({"at": [1.0]})).mark_rule(color=INK).encode(y="at:Q")
    right = _lines(
        record, others, x, ("ratio", "ratio_low", "ratio_high"), f"over {base}",
        alt.Scale(zero=False, nice=True, padding=8),
    )  # fmt: skip
    heads = _headings(record, sweep)
    return alt.hconcat(
        alt.layer(*left).properties(title=heads[0], **PANEL),
        alt.layer(one, *right).properties(title=heads[1], **PANEL),
        spacing=44,
    )


def _headings(record: dict[str, Any], sweep: str) -> tuple[str, str]:
    cells = _cells(record, sweep)
    if sweep == "context":
        what = f"{cells[0]['batch'] * cells[0]['length']:,} tokens a batch"
    else:
        what = f"sequences of {cells[0]['length']:,} tokens" if cells else ""
    return f"Training speed, {what}", f"Over {record['baseline']}, turn by turn"


def _lines(
    record: dict[str, Any],
    table: pd.DataFrame,
    x: alt.X,
    columns: tuple[str, str, str],
    title: str,
    scale: alt.Scale,
) -> list[alt.Chart]:
    value, low, high = columns
    arms = list(record["arms"])
    colour, dash, shape = _styles(arms, record["baseline"])
    base = alt.Chart(table).encode(x=x, color=colour)
    form = "~s" if value == "tokens_per_second" else "~%"
    y = alt.Y(f"{value}:Q", title=title, scale=scale, axis=alt.Axis(format=form))
    return [
        base.mark_rule(strokeWidth=1.6).encode(
            y=alt.Y(f"{low}:Q", scale=scale, title=title), y2=f"{high}:Q"
        ),
        base.mark_line(strokeWidth=2).encode(y=y, strokeDash=dash),
        base.mark_point(filled=True, size=52, opacity=1).encode(y=y, shape=shape),
    ]


def _styles(arms: list[str], baseline: str) -> tuple[alt.Color, alt.StrokeDash, alt.Shape]:
    """Every arm its own colour, or the same one with another dash and point."""
    others = [arm for arm in arms if arm != baseline]
    number = {arm: i for i, arm in enumerate(others)}
    colours = [BASELINE if arm == baseline else ARMS[number[arm] % len(ARMS)] for arm in arms]
    dashes = [
        DASHES[0] if arm == baseline else DASHES[number[arm] // len(ARMS) % len(DASHES)]
        for arm in arms
    ]
    shapes = [SHAPES[i % len(SHAPES)] for i in range(len(arms))]
    legend = alt.Legend(columns=5, symbolSize=110, symbolOpacity=1, symbolStrokeWidth=0)
    return (
        alt.Color("arm:N", scale=alt.Scale(domain=arms, range=colours), legend=legend),
        alt.StrokeDash("arm:N", scale=alt.Scale(domain=arms, range=dashes), legend=legend),
        alt.Shape("arm:N", scale=alt.Scale(domain=arms, range=shapes), legend=legend),
    )


def _title(record: dict[str, Any]) -> alt.TitleParams:
    ranked = "" if record["rankable"] else "; not to be ranked: the device was shared"
    return alt.TitleParams(
        text=f"{record['device']}, {record['precision']}{ranked}", fontWeight="normal", fontSize=12
    )
