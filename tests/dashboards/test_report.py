"""The report: self-contained, true to the comparison, and drawn from whatever is there."""

import json
import math
import os
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from typer.testing import CliRunner

from arch_search.cli import make_app
from arch_search.compare import compare
from arch_search.errors import UsageError
from arch_search.records import read_experiment, table
from arch_search.storage import ROOT_VARIABLE
from dashboards import figures
from dashboards.report import headline, make_report, refresh_report, write_report

SNAPSHOT = Path(__file__).parent / "planted_report.md"


def written(root, folder):
    report = make_report(read_experiment("planted", root))
    return {path.name: path.read_text() for path in write_report(report, folder)}


def test_html_stands_alone(planted, tmp_path):
    files = written(planted(), tmp_path)
    page = files["report.html"]
    namespaces = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
    assert not re.search(r"(src|href)\s*=|url\((?!#)|@import|<script|https?://", namespaces)
    assert page.count("<svg") == 9
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(ids)
    for arm in ("baseline", "m2rnn-1-first", "m2rnn-1-last", "m2rnn-2-spread"):
        assert arm in page


def test_figures_are_well_formed_and_mark_what_matters(planted, tmp_path):
    files = written(planted(), tmp_path)
    drawn = {name: ET.fromstring(text) for name, text in files.items() if name.endswith(".svg")}
    assert set(drawn) == {
        f"{n}.svg"
        for n in (
            "layouts",
            "differences",
            "curves",
            "positions",
            "throughput",
            "documents",
            "metrics",
            "residuals",
            "tradeoffs",
        )
    }
    said = {name: " ".join(svg.itertext()) for name, svg in drawn.items()}
    assert "training length 128" in said["positions.svg"]
    assert "1024" in said["positions.svg"]
    assert "not to be ranked" in said["throughput.svg"]
    assert "not resolved" in said["differences.svg"]
    cells = files["layouts.svg"].count("#e0702a")
    assert cells >= 4  # one, one and two layers of m2rnn; the legend may add its own


def test_markdown_is_as_kept(planted, tmp_path):
    """After a wanted change, copy the written report.md over the kept one, and read it."""
    assert written(planted(), tmp_path)["report.md"] == SNAPSHOT.read_text()


def test_numbers_are_those_of_the_comparison(planted):
    root = planted()
    comparison = compare("planted", root=root)
    report = make_report(read_experiment("planted", root))
    for row, outcome in zip(report.rows, comparison.arms, strict=True):
        assert row.mean == f"{outcome.mean:.4f}"
        assert row.verdict == outcome.verdict
    found = headline(comparison)
    assert found["val/bits_per_byte/difference/m2rnn-2-spread"] == comparison.arms[3].difference


def test_text_from_people_cannot_become_markup(planted, tmp_path):
    root = planted()
    plan = (root.experiment("planted").path / "plan.json").read_text()
    changed = plan.replace("Does an M²RNN layer", "<script>alert(1)</script> Does an M²RNN layer")
    (root.experiment("planted").path / "plan.json").write_text(changed)
    page = written(root, tmp_path)["report.html"]
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_one_seed_and_missing_runs_still_make_a_report(planted, tmp_path):
    one = written(planted(seeds=1, root=tmp_path / "one"), tmp_path / "a")
    assert "differences.svg" not in one
    assert "Each arm has one seed" in one["report.html"]
    some = planted(
        root=tmp_path / "two",
        failed=frozenset({("m2rnn-1-first", 1)}),
        pending=frozenset({("baseline", 0)}),
    )
    page = written(some, tmp_path / "b")["report.html"]
    assert "1 of 5 runs failed" in page
    assert "4 of 5" in page


def test_many_arms_get_panels(planted, tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "MANY_ARMS", 2)
    files = written(planted(), tmp_path)
    curves = ET.fromstring(files["curves.svg"])
    assert {"m2rnn-1-first", "m2rnn-1-last", "m2rnn-2-spread"} <= {
        t.strip() for t in curves.itertext()
    }


def test_a_report_is_made_anew_only_when_something_came_in(planted):
    root = planted()
    page = refresh_report("planted", root)
    first = page.stat().st_mtime_ns
    assert refresh_report("planted", root).stat().st_mtime_ns == first
    run = read_experiment("planted", root).runs[0]
    result = run.folder.path / "result.json"
    later = page.stat().st_mtime + 10
    os.utime(result, (later, later))
    assert refresh_report("planted", root).stat().st_mtime_ns > first


def test_a_report_goes_where_it_is_told_to(planted, tmp_path, monkeypatch):
    root = planted()
    monkeypatch.setenv(ROOT_VARIABLE, str(root.path))
    elsewhere = tmp_path / "made" / "here"
    arguments = ["report", "planted", "--output", str(elsewhere)]
    outcome = CliRunner().invoke(make_app(arguments), arguments)
    assert outcome.exit_code == 0, outcome.output
    assert (elsewhere / "report.html").is_file()
    assert not read_experiment("planted", root).folder.report.exists()
    arguments[-1] = str(Path(__file__))
    outcome = CliRunner().invoke(make_app(arguments), arguments)
    assert isinstance(outcome.exception, UsageError)
    assert "--output" in str(outcome.exception)


def test_a_part_small_enough_for_a_repository_is_markdown_and_its_figures(
    planted, tmp_path, monkeypatch
):
    root = planted()
    monkeypatch.setenv(ROOT_VARIABLE, str(root.path))
    arguments = ["report", "planted", "--output", str(tmp_path / "a"), "--figures"]
    outcome = CliRunner().invoke(make_app(arguments), [*arguments, "differences,positions"])
    assert outcome.exit_code == 0, outcome.output
    names = {path.name for path in (tmp_path / "a").iterdir()}
    assert names == {"report.md", "differences.svg", "positions.svg"}
    text = (tmp_path / "a" / "report.md").read_text()
    assert set(re.findall(r"\]\((.*?\.svg)\)", text)) == names - {"report.md"}
    assert not re.search(r"^## .*\n\s*^## ", text, re.MULTILINE)  # no heading without a body
    outcome = CliRunner().invoke(make_app(arguments), [*arguments, "diferences"])
    assert isinstance(outcome.exception, UsageError)
    assert "did you mean 'differences'" in str(outcome.exception)


def test_loss_by_position_is_pooled_to_a_few_points_an_octave(planted):
    experiment = read_experiment("planted", planted())
    pieces = table(experiment, "loss_by_position")
    chart = figures.loss_by_position(experiment, pieces, 128).to_dict()
    drawn = next(
        rows for rows in chart["datasets"].values() if {"arm", "position", "mean"} <= set(rows[0])
    )
    of_one = sorted(row["position"] for row in drawn if row["arm"] == "baseline")
    octaves = math.log2(of_one[-1] / of_one[0])
    assert len(of_one) <= 4 * octaves + 2
    assert len(of_one) < len(set(pieces["first"]))


def test_what_cannot_be_compared_gets_no_report(planted):
    root = planted(unlike_stream=lambda arm, seed, step: "f" if arm == "baseline" else "")
    with pytest.raises(UsageError, match="token stream"):
        refresh_report("planted", root)


def test_what_was_not_held_equal_is_said_with_its_size(planted):
    report = make_report(read_experiment("planted", planted()))
    (said,) = [note for note in report.notes if "Not held" in note]
    assert "parameters (+0.58 % in m2rnn-2-spread)" in said
    assert "state elements (−17 % in m2rnn-2-spread)" in said
    assert "flops" not in said


def test_names_too_long_for_a_line_are_folded_not_cut():
    name = "m2rnn-norm_clip-softplus_decay-outer-query_heads=1-key_heads=1-state=256"
    told = figures.row_axis([name, "gru_fair"]).to_dict()["labelExpr"]
    lines = json.loads(told.partition("({")[2].partition("})")[0].join("{}"))[name]
    assert "".join(lines) == name
    assert max(map(len, lines)) <= figures.LONG_NAME
    assert "gru_fair" not in told
    assert "labelExpr" not in figures.row_axis(["gru_fair"]).to_dict()
