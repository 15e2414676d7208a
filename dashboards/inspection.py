"""An inspection as files: one page, figures as SVG and PNG, tables as Parquet, numbers as JSON."""

import json
import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import vl_convert
from markupsafe import Markup

from arch_search.errors import UsageError
from arch_search.state_analysis.inspection import Inspection
from arch_search.storage import write_atomic
from arch_search.stored_model import StoredModel
from dashboards.figures import to_svg
from dashboards.state_figures import CAPTIONS, draw_inspection

HERE = Path(__file__).parent
TITLES = {
    "loss": "Loss by position",
    "growth": "Growth of states",
    "norms": "Norms",
    "outliers": "Outlier channels",
    "memory": "Memory of the first token",
    "drives": "Inputs of the recurrence",
    "values": "Values",
    "mitigations": "Loss under mitigations",
}


def open_folder(path: Path) -> Path:
    """The folder, made if there is none. Raises UsageError where that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
    return path


def write_inspection(found: Inspection, stored: StoredModel, folder: Path) -> list[Path]:
    """Write everything into a folder that exists; returns the files, the page first.

    Raises:
        UsageError: nothing can be written there.
    """
    try:
        return _write(found, stored, folder)
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror or error}") from None


def _write(found: Inspection, stored: StoredModel, folder: Path) -> list[Path]:
    drawn = {name: to_svg(chart) for name, chart in draw_inspection(found).items()}
    for name, svg in drawn.items():
        write_atomic(folder / f"{name}.svg", svg)
        write_atomic(folder / f"{name}.png", vl_convert.svg_to_png(svg, scale=1.5))
    frames = {**found.tables, "mitigated_losses": found.mitigated_losses}
    frames = {name: frame for name, frame in frames.items() if not frame.empty}
    for name, frame in frames.items():
        frame.to_parquet(folder / f"{name}.parquet", index=False)
    write_atomic(folder / "inspection.json", json.dumps(summary(found, stored), indent=1))
    write_atomic(folder / "inspection.html", _page(found, stored, drawn))
    names = ["inspection.html", "inspection.json", *(f"{name}.parquet" for name in frames)]
    names += [f"{name}.{kind}" for name in drawn for kind in ("svg", "png")]
    return [folder / name for name in names]


def summary(found: Inspection, stored: StoredModel) -> dict[str, Any]:
    """What was found, as JSON-able values; numbers that are not finite become null."""
    states = found.tables["states"]
    heads = []
    if not states.empty:
        last = pd.DataFrame(states[states["position"] == found.length])
        heads = last.merge(
            found.tables["memory"], how="left", on=["prompt", "layer", "kind", "head", "position"]
        ).to_dict("records")
    return _plain(
        {
            "model": stored.identity,
            "training_length": found.training_length,
            "length": found.length,
            "collapse": {
                prompt: {**asdict(c), "found": c.found} for prompt, c in found.collapse.items()
            },
            "mitigations": found.tables["mitigations"].to_dict("records"),
            "refused": found.refused,
            "heads_at_the_end": heads,
        }
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def sentences(found: Inspection) -> list[str]:
    """What was found, in words."""
    said = [f"{prompt}: {collapse.sentence()}" for prompt, collapse in found.collapse.items()]
    states = found.tables["states"]
    if states.empty:
        return [*said, "No layer carries a state of fixed size, so there is nothing else to see."]
    for prompt in found.collapse:
        last = states[(states["position"] == found.length) & (states["prompt"] == prompt)]
        rows = pd.DataFrame(last).to_dict("records")
        top = max(rows, key=lambda row: row["norm"])
        odd = sum(row["outlier_rows"] + row["outlier_columns"] > 0 for row in rows)
        said.append(
            f"{prompt}: the largest norm at token {found.length:,} is {top['norm']:.3g}, in head "
            f"{top['head']} of layer {top['layer']} ({top['kind']}); {odd} of {len(rows)} heads "
            "have channels that stand out."
        )
    return [*said, *found.refused.values()]


COLUMNS = {
    "prompt": "prompt",
    "mitigation": "mitigation",
    "loss_in_training_length": "loss within",
    "damage_in_training_length": "damage within",
    "loss_beyond": "loss beyond",
    "ratio": "largest beyond / within",
    "collapse_position": "collapse at",
    "times_slower": "times slower",
}


def mitigation_rows(found: Inspection) -> list[list[str]]:
    """The table of mitigations as text."""
    return [
        [_cell(row[column]) for column in COLUMNS]
        for row in found.tables["mitigations"].to_dict("records")
    ]


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None or pd.isna(value):
        return "none"
    return f"{int(value):,}" if float(value).is_integer() and abs(value) > 9 else f"{value:.3f}"


def _page(found: Inspection, stored: StoredModel, drawn: dict[str, str]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    # Inner ids carry the figure's name, because one page holds several.
    named = {name: re.sub(r'(\bid="|url\(#)', rf"\g<1>{name}-", svg) for name, svg in drawn.items()}
    return environment.get_template("inspection.html.j2").render(
        title=f"States of {stored.name}",
        facts=f"{stored.identity}: trained at {found.training_length:,} tokens a row, looked at "
        f"to {found.length:,}, in pieces of {found.piece}.",
        sentences=sentences(found),
        columns=list(COLUMNS.values()),
        rows=mitigation_rows(found),
        figures=[(TITLES[name], CAPTIONS[name], Markup(svg)) for name, svg in named.items()],
    )
