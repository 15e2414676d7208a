"""`arch-search thresholds`: forget threshold and recall limit over state size, with fits."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
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
from arch_search.records import Experiment, read_experiment
from arch_search.state_analysis.collapse import FACTOR
from arch_search.storage import Root, write_atomic
from arch_search.thresholds import (
    LEVEL,
    GridPoint,
    Threshold,
    ThresholdFit,
    beside_published,
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
    passkey: Annotated[str | None, typer.Option("--passkey", help="Label of the passkey "
                       "evaluation; passkey, if there is one, if not given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:  # fmt: skip
    """From which training length on each state size forgets, how far it then recalls, and fits."""
    root = Root()
    experiment = read_experiment(name, root)
    points = read_grid(experiment, passkey=passkey)
    limit = factor if factor is not None else _evaluated_factor(experiment)
    grids = tuple(
        grid_of(block, [p for p in points if p.block == block], limit, accuracy)
        for block in dict.fromkeys(point.block for point in points)
    )
    files = write_thresholds(grids, experiment.folder.report, limit)
    if as_json:
        shown = _as_json(grids, limit)
        print(json.dumps({**shown, "files": [str(file) for file in files]}))
        return
    for grid in grids:
        screen().print(_table(grid, limit))
        for sentence in grid.sentences():
            screen().print(sentence)
    print(files[0])


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """One block's runs, what they reached, and the fits over its state sizes."""

    block: str
    points: tuple[GridPoint, ...]
    found: tuple[Threshold, ...]
    fits: Fits

    def sentences(self) -> list[str]:
        """The fits, the published one beside them, and what is not in them."""
        said = [f"{self.block}: {fit_sentence(fit)}" for what in WHATS for fit in self.fits[what]]
        said += [f"{self.block}: {beside_published(fit)}" for fit in self.fits["forget"][:1]]
        for what, title in WHATS.items():
            short = title.split(" (")[0]
            looked = [t for t in self.found if what == "forget" or t.asked]
            if missing := [t for t in looked if not getattr(t, what)]:
                said.append(
                    f"{self.block}: no {short} within the grid for {self._share(missing)}: they "
                    "are not in the fits, which then tend to be too flat."
                )
            if looked and not self.fits[what]:
                said.append(f"{self.block}: too few state sizes reached a {short} to fit it.")
        if unasked := [t for t in self.found if not t.asked]:
            said.append(
                f"{self.block}: no passkey evaluation for {self._share(unasked)}: nothing is "
                "known of their recall limit."
            )
        return said

    def _share(self, some: Sequence[Threshold]) -> str:
        sizes = ", ".join(f"{n:,}" for n in sorted({t.state_elements for t in some}))
        return f"{len(some)} of {len(self.found)} runs of a size and seed (state elements {sizes})"


def grid_of(block: str, points: Sequence[GridPoint], factor: float, accuracy: float) -> Grid:
    """One block's grid; collapse is a ratio over `factor`, recall an accuracy from `accuracy`."""
    found = find_thresholds(points, factor=factor, accuracy=accuracy)
    fits = {what: fit_thresholds(found, what) for what in WHATS}
    return Grid(block=block, points=tuple(points), found=found, fits=fits)


def _evaluated_factor(experiment: Experiment) -> float:
    given = [e.options for e in experiment.plan.evaluations if e.task == "collapse"]
    return float(given[0]["factor"]) if given else FACTOR


def write_thresholds(grids: Sequence[Grid], folder: Path, factor: float) -> list[Path]:
    """The picture, tables as Parquet, all numbers as JSON; the picture first."""
    folder.mkdir(parents=True, exist_ok=True)
    svg = to_svg(picture(grids, factor))
    write_atomic(folder / "thresholds.svg", svg)
    write_atomic(folder / "thresholds.png", vl_convert.svg_to_png(svg, scale=1.5))
    write_atomic(folder / "thresholds.json", json.dumps(_as_json(grids, factor)))
    rows = [
        {**{k: v for k, v in asdict(p).items() if k != "passkeys"}, "context": n, "accuracy": a}
        for grid in grids
        for p in grid.points
        for n, a in (p.passkeys or {0: math.nan}).items()
    ]
    pd.DataFrame(rows).to_parquet(folder / "threshold_grid.parquet", index=False)
    names = ("thresholds.svg", "thresholds.png", "thresholds.json", "threshold_grid.parquet")
    return [folder / name for name in names]


def picture(grids: Sequence[Grid], factor: float) -> alt.TopLevelMixin:
    """A row for each block. Left: its grid. Right: thresholds with their fits."""
    rows = [
        alt.hconcat(_cells(grid, factor), *[_curve(grid, what) for what in WHATS]).resolve_scale(
            color="independent"
        )
        for grid in grids
    ]
    return rows[0] if len(rows) == 1 else alt.vconcat(*rows)


def _cells(grid: Grid, factor: float) -> alt.LayerChart | alt.FacetChart:
    """The collapse ratio by state size and training length."""
    cells = pd.DataFrame(
        [
            {"size": p.state_elements, "length": p.training_length, "ratio": p.ratio}
            for p in grid.points
        ]
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
    title = f"{grid.block}: loss beyond over within (collapse: over {factor:g})"
    return alt.layer(
        base.mark_rect().encode(color=colour), base.mark_text(fontSize=12).encode(text="text:N")
    ).properties(width=280, height=220, title=title)


def _curve(grid: Grid, what: str) -> alt.LayerChart | alt.FacetChart:
    found, fits = grid.found, grid.fits[what]
    at = Counter((t.state_elements, getattr(t, what)) for t in found if getattr(t, what))
    rows = [
        {"size": size, "tokens": tokens, "label": f"×{seeds}" if seeds > 1 else ""}
        for (size, tokens), seeds in at.items()
    ]
    sizes = np.linspace(min(t.state_elements for t in found),
                        max(t.state_elements for t in found), 100)  # fmt: skip
    lines = [
        {"size": size, "tokens": 1e3 * value, "fit": fit.form}
        for fit in fits
        if not fit.undetermined
        for size, value in zip(sizes, fit.at(sizes / 1e6), strict=True)
    ]
    x = alt.X("size:Q", title="state elements", axis=alt.Axis(format="~s", tickCount=5))
    y = alt.Y("tokens:Q", title=WHATS[what], scale=alt.Scale(zero=True))
    points = alt.Chart(pd.DataFrame(rows, columns=["size", "tokens", "label"]))
    layers: list[alt.Chart] = [
        points.mark_point(size=70, filled=True, color=BASELINE, opacity=0.8).encode(x=x, y=y),
        points.mark_text(dx=8, align="left", color=BASELINE).encode(x=x, y=y, text="label:N"),
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


def _table(grid: Grid, factor: float) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), title=grid.block, title_justify="left")
    lengths = sorted({p.training_length for p in grid.points})
    for column in ("state", "seed", *(f"at {n}" for n in lengths), "forgets from", "recalls to"):
        table.add_column(column, justify="right")
    ratios = {(p.state_elements, p.seed, p.training_length): p.ratio for p in grid.points}
    for t in grid.found:
        cells = [ratios.get((t.state_elements, t.seed, n)) for n in lengths]
        shown = ["" if r is None else f"{r:.2f}{'*' if r > factor else ''}" for r in cells]
        forget = "not in the grid" if t.forget is None else f"{t.forget:,}"
        table.add_row(f"{t.state_elements:,}", str(t.seed), *shown, forget, _recall(t))
    return table


def _recall(found: Threshold) -> str:
    if not found.asked:
        return "no passkey evaluation"
    if found.recall is None:
        return ""
    return f"{found.recall:,}" if found.recall else "nowhere"


def _as_json(grids: Sequence[Grid], factor: float) -> dict[str, Any]:
    """`grid` and `thresholds` name the block of each row; a fit's block stands in it, too."""
    fits = [
        {
            "block": grid.block,
            **asdict(fit),
            "r_squared": fit.r_squared if math.isfinite(fit.r_squared) else None,
        }
        for grid in grids
        for what in WHATS
        for fit in grid.fits[what]
    ]
    return {
        "factor": factor,
        "grid": [asdict(p) for grid in grids for p in grid.points],
        "thresholds": [asdict(t) for grid in grids for t in grid.found],
        "fits": fits,
        "sentences": [said for grid in grids for said in grid.sentences()],
    }
