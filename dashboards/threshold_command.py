"""`arch-search thresholds`: forget threshold and recall limit over state size, with fits."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import altair as alt
import numpy as np
import pandas as pd
import typer
import vl_convert
from rich.table import Table

from arch_search.commands.names import NameArgument
from arch_search.commands.screen import screen
from arch_search.errors import UsageError
from arch_search.records import Experiment, read_experiment
from arch_search.state_analysis.collapse import FACTOR
from arch_search.storage import Root, write_atomic
from arch_search.thresholds import (
    LEVEL,
    GridPoint,
    Threshold,
    ThresholdFit,
    find_thresholds,
    fit_sentence,
    fit_thresholds,
    read_grid,
)
from dashboards.figures import to_svg
from dashboards.palette import ARMS, BASELINE

WHATS = {"forget": "forget threshold (tokens)", "recall": "recall limit (tokens)"}
Fits = dict[str, tuple[ThresholdFit, ...]]


def thresholds(
    name: NameArgument,
    factor: Annotated[float | None, typer.Option("--factor", min=1, help="Collapse: loss over "
                      "this many times the largest within the training length; as the experiment "
                      "evaluated it if not given.")] = None,
    accuracy: Annotated[float, typer.Option("--accuracy", min=0, max=1, help="Of passkeys, up to "
                                            "the recall limit.")] = LEVEL,
    passkey: Annotated[str, typer.Option("--passkey", help="Label of the passkey evaluation.")]
    = "passkey",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:  # fmt: skip
    """From which training length on each state size forgets, how far it then recalls, and fits."""
    root = Root()
    experiment = read_experiment(name, root)
    points = read_grid(experiment, passkey=passkey)
    limit = factor if factor is not None else _evaluated_factor(experiment)
    found = find_thresholds(points, factor=limit, accuracy=accuracy)
    fits = {what: fit_thresholds(found, what) for what in WHATS}
    if len({point.block for point in points}) > 1:
        raise UsageError(f"{name} has several blocks; thresholds are fitted for one at a time")
    files = write_thresholds(points, found, fits, experiment.folder.report, limit)
    if as_json:
        shown = _as_json(points, found, fits, limit)
        print(json.dumps({**shown, "files": [str(file) for file in files]}))
        return
    screen().print(_table(points, found, limit))
    for sentence in sentences(found, fits):
        screen().print(sentence)
    print(files[0])


def _evaluated_factor(experiment: Experiment) -> float:
    given = [e.options for e in experiment.plan.evaluations if e.task == "collapse"]
    return float(given[0]["factor"]) if given else FACTOR


def sentences(found: tuple[Threshold, ...], fits: Fits) -> list[str]:
    """The fits, and what is not in them."""
    said = [fit_sentence(fit) for what in WHATS for fit in fits[what]]
    for what, title in WHATS.items():
        missing = [t for t in found if not getattr(t, what)]
        if missing and (what == "forget" or any(t.recall is not None for t in found)):
            sizes = sorted({t.state_elements for t in missing})
            said.append(
                f"No {title.split(' (')[0]} within the grid for {len(missing)} of {len(found)} "
                f"runs of a size and seed (state elements {', '.join(f'{n:,}' for n in sizes)}): "
                "they are not in the fits, which then tend to be too flat."
            )
        if not fits[what]:
            said.append(f"Too few state sizes reached a {title.split(' (')[0]} to fit it.")
    return said


def write_thresholds(
    points: tuple[GridPoint, ...], found: tuple[Threshold, ...], fits: Fits, folder: Path,
    factor: float,
) -> list[Path]:  # fmt: skip
    """The picture, tables as Parquet, all numbers as JSON; the picture first."""
    folder.mkdir(parents=True, exist_ok=True)
    svg = to_svg(picture(points, found, fits, factor))
    write_atomic(folder / "thresholds.svg", svg)
    write_atomic(folder / "thresholds.png", vl_convert.svg_to_png(svg, scale=1.5))
    write_atomic(folder / "thresholds.json", json.dumps(_as_json(points, found, fits, factor)))
    grid = [
        {**{k: v for k, v in asdict(p).items() if k != "passkeys"}, "context": n, "accuracy": a}
        for p in points
        for n, a in (p.passkeys or {0: math.nan}).items()
    ]
    pd.DataFrame(grid).to_parquet(folder / "threshold_grid.parquet", index=False)
    names = ("thresholds.svg", "thresholds.png", "thresholds.json", "threshold_grid.parquet")
    return [folder / name for name in names]


def picture(
    points: tuple[GridPoint, ...], found: tuple[Threshold, ...], fits: Fits, factor: float
) -> alt.TopLevelMixin:
    """Left: the grid, collapse ratio in each cell. Right: thresholds with their fits."""
    cells = pd.DataFrame(
        [{"size": p.state_elements, "length": p.training_length, "ratio": p.ratio} for p in points]
    )
    means = pd.DataFrame(
        [
            {"size": size, "length": length, "ratio": float(np.mean(list(part["ratio"])))}
            for (size, length), part in cells.groupby(["size", "length"])  # type: ignore[misc]
        ]
    )
    means = means.assign(
        text=means["ratio"].map("{:.2f}".format), collapsed=means["ratio"] > factor
    )
    base = alt.Chart(means).encode(
        x=alt.X("size:O", title="state elements", axis=alt.Axis(labelAngle=0, format=",d")),
        y=alt.Y("length:O", title="training length", sort="descending"),
    )
    colour = alt.Color(
        "ratio:Q", legend=None,
        scale=alt.Scale(domain=[1, factor, max(2 * factor - 1, factor + 0.1)], clamp=True,
                        range=["#c9dcec", "#f4f4f4", "#d55e00"]),
    )  # fmt: skip
    grid = alt.layer(
        base.mark_rect().encode(color=colour), base.mark_text(fontSize=12).encode(text="text:N")
    ).properties(
        width=280, height=220, title=f"Loss beyond over within (collapse: over {factor:g})"
    )
    return alt.hconcat(grid, *[_curve(found, fits[what], what) for what in WHATS]).resolve_scale(
        color="independent"
    )


def _curve(found: tuple[Threshold, ...], fits: tuple[ThresholdFit, ...], what: str):
    rows = [
        {"size": t.state_elements, "tokens": getattr(t, what)} for t in found if getattr(t, what)
    ]
    sizes = np.linspace(min(t.state_elements for t in found),
                        max(t.state_elements for t in found), 100)  # fmt: skip
    lines = [
        {"size": size, "tokens": 1e3 * value, "fit": fit.form}
        for fit in fits
        for size, value in zip(sizes, fit.at(sizes / 1e6), strict=True)
    ]
    x = alt.X("size:Q", title="state elements", axis=alt.Axis(format="~s", tickCount=5))
    y = alt.Y("tokens:Q", title=WHATS[what], scale=alt.Scale(zero=True))
    layers: list[alt.Chart] = [
        alt.Chart(pd.DataFrame(rows, columns=["size", "tokens"]))
        .mark_point(size=70, filled=True, color=BASELINE, opacity=0.8)
        .encode(x=x, y=y)
    ]
    if lines:
        scale = alt.Scale(domain=["linear", "exponential"], range=[ARMS[1], ARMS[0]])
        layers.append(
            alt.Chart(pd.DataFrame(lines))
            .mark_line(strokeWidth=2, clip=True)
            .encode(x=x, y=y, color=alt.Color("fit:N", scale=scale))
        )
    title = "Smallest length without collapse" if what == "forget" else "Longest recalled context"
    return alt.layer(*layers).properties(width=260, height=220, title=title)


def _table(points: tuple[GridPoint, ...], found: tuple[Threshold, ...], factor: float) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    lengths = sorted({p.training_length for p in points})
    for column in ("state", "seed", *(f"at {n}" for n in lengths), "forgets from", "recalls to"):
        table.add_column(column, justify="right")
    ratios = {(p.state_elements, p.seed, p.training_length): p.ratio for p in points}
    for t in found:
        cells = [ratios.get((t.state_elements, t.seed, n)) for n in lengths]
        shown = ["" if r is None else f"{r:.2f}{'*' if r > factor else ''}" for r in cells]
        forget = "not in the grid" if t.forget is None else f"{t.forget:,}"
        recall = "" if t.recall is None else f"{t.recall:,}" if t.recall else "nowhere"
        table.add_row(f"{t.state_elements:,}", str(t.seed), *shown, forget, recall)
    return table


def _as_json(
    points: tuple[GridPoint, ...], found: tuple[Threshold, ...], fits: Fits, factor: float
) -> dict[str, Any]:
    every = [asdict(fit) for what in WHATS for fit in fits[what]]
    for fit in every:
        fit["r_squared"] = fit["r_squared"] if math.isfinite(fit["r_squared"]) else None
    return {
        "factor": factor,
        "grid": [asdict(p) for p in points],
        "thresholds": [asdict(t) for t in found],
        "fits": every,
        "sentences": sentences(found, fits),
    }
