"""A report of a factorial with declared contrasts: what was asked, came late, or got worse."""

import json
import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from arch_search.contrasts import resolve_contrasts
from arch_search.experiment import ContrastFile
from arch_search.plan_spec import ContrastSpec, DeclarationSpec, PublishedSpec
from arch_search.records import read_experiment
from dashboards.latex import escape_latex
from dashboards.report import make_report, to_html, to_latex, to_markdown, write_report


def factorial(arm):
    """Two counts at two places; the fourth cell is the baseline's arm turned into one."""
    levels = {"m2rnn-1-first": (1, "first"), "m2rnn-1-last": (1, "last"),
              "m2rnn-2-spread": (2, "first"), "baseline": (2, "last")}  # fmt: skip
    count, position = levels[arm.name]
    return replace(arm, factors={"count": count, "position": position}, is_baseline=False)


@pytest.fixture
def root(planted):
    root = planted(change_arm=factorial)
    folder = root.experiment("planted")
    plan = folder.plan()
    asked = {
        "count": ContrastFile(linear="count"),
        "both": ContrastFile(interaction=("count", "position")),
    }
    late = DeclarationSpec(
        what="contrast count", value="", time="2026-01-02T10:00:00+00:00", after_results=True
    )
    published = PublishedSpec(
        source="a table & more", values={"baseline": {"val/bits_per_byte": 2.31}}
    )
    folder.write_plan(
        replace(
            plan,
            contrasts=resolve_contrasts(asked, plan.arms),
            declarations=(late,),
            published=published,
        )
    )
    return root


def test_contrasts_interactions_and_published_numbers_are_shown(root):
    report = make_report(read_experiment("planted", root))
    page, text = to_html(report), to_markdown(report)
    count, both = report.contrasts
    assert count.late
    assert not both.late
    assert page.count("<em>declared after results were there</em>") == 1
    assert {"contrasts", "interactions", "residuals"} <= set(report.figures)
    # planted at (count, position): 1 first -0.06, 1 last 0, 2 first -0.11, 2 last 0; so the slope
    # over count is -0.05 at first and 0 at last, and the contrast is "first - last"
    assert both.name.endswith("first - last")
    assert both.verdict == "lower"
    low, high = (float(end.replace("−", "-")) for end in both.interval.strip("[]").split(", "))
    assert low <= -0.05 <= high
    assert "| baseline | validation bits per byte | 2.31 |" in text
    assert "a table &amp; more" in page
    drawn = re.sub(r"<[^>]+>", " ", report.figures["interactions"].svg)
    assert "count x position" in drawn


def test_a_chain_is_drawn_as_a_waterfall_whose_steps_add_up(planted):
    root = planted()
    folder = root.experiment("planted")
    plan = folder.plan()
    names = ("baseline", "m2rnn-1-last", "m2rnn-1-first", "m2rnn-2-spread")
    asked = resolve_contrasts({"steps": ContrastFile(chain=names)}, plan.arms)
    folder.write_plan(replace(plan, contrasts=asked))
    report = make_report(read_experiment("planted", root))
    drawn = re.sub(r"<[^>]+>", " ", report.figures["waterfall"].svg)
    shares = [int(share.replace("−", "-")) for share in re.findall(r"\((.?\d+) %\)", drawn)]
    assert len(shares) == 3
    assert sum(shares) == pytest.approx(100, abs=2)
    *steps, whole = [c.value for c in report.comparison.contrasts if c.value is not None]
    assert sum(steps) == pytest.approx(whole)
    means = {arm.arm: arm.mean for arm in report.comparison.arms}
    assert f"{means['baseline']:.4f}" in drawn
    assert f"{means['m2rnn-2-spread']:.4f}" in drawn
    assert "![waterfall](waterfall.svg)" in to_markdown(report)
    assert report.figures["waterfall"].caption in to_html(report)
    names = ("baseline", "m2rnn-1-first", "m2rnn-1-last")  # the last is the baseline's equal
    asked = resolve_contrasts({"steps": ContrastFile(chain=names)}, plan.arms)
    folder.write_plan(replace(plan, contrasts=asked))
    report = make_report(read_experiment("planted", root))
    assert report.comparison.contrasts[-1].verdict.startswith("not resolved")
    drawn = re.sub(r"<[^>]+>", " ", report.figures["waterfall"].svg)
    assert not re.search(r"\d %\)", drawn)  # no share of a whole that is not resolved


def test_a_regression_is_flagged_though_the_primary_metric_is_better(planted):
    root = planted()
    for run in read_experiment("planted", root).runs:
        for path in run.folder.path.glob("evaluations/*.json"):
            found = json.loads(path.read_text())
            if "position/bits_per_byte_to_8x" in found["metrics"] and run.arm.name.endswith("d"):
                found["metrics"]["position/bits_per_byte_to_8x"] += 0.5
                path.write_text(json.dumps(found))
    report = make_report(read_experiment("planted", root))
    (said,) = [s for s in report.found if s.startswith("Regression")]
    assert said.startswith("Regression in m2rnn-2-spread: position bits per byte to 8x (+1")
    assert said.endswith("though better on validation bits per byte.")


def test_yes_or_no_gets_its_own_page(planted):
    root = planted()
    for run in read_experiment("planted", root).runs:
        path = run.folder.path / "result.json"
        result = json.loads(path.read_text())
        result["metrics"]["s3/solved"] = float(run.arm.name != "baseline" and run.planned.seed < 4)
        path.write_text(json.dumps(result))
    folder = root.experiment("planted")
    weights = {"m2rnn-1-last": 0.5, "m2rnn-1-first": 0.5, "baseline": -1.0}
    asked = ContrastSpec(name="any", family="any", text="", weights=weights)
    folder.write_plan(replace(folder.plan(), contrasts=(asked,)))
    report = make_report(read_experiment("planted", root), metric="s3/solved")
    (contrast,) = report.rate_contrasts
    assert (contrast.name, contrast.of, contrast.minus) == ("any", "8 of 10", "0 of 5")
    for page in (to_html(report), to_markdown(report), to_latex(report)):
        assert "8 of 10" in page
    assert [row.count for row in report.rates] == ["0 of 5", "4 of 5", "4 of 5", "4 of 5"]
    assert "4 of 5" in to_html(report)
    assert "separated" in to_latex(report)
    assert "differences" not in report.figures


def test_latex_escapes_what_people_write():
    assert escape_latex("M²RNN_1 & 3 % {x}") == r"M\textsuperscript{2}RNN\_1 \& 3 \% \{x\}"


def test_latex_has_the_numbers_and_its_own_syntax_only(root):
    tables = to_latex(make_report(read_experiment("planted", root)))
    assert tables.count(r"\begin{tabularx}") == tables.count(r"\end{tabularx}") == 4
    assert r"count$^\dagger$ & " in tables
    assert r"Source: a table \& more" in tables
    assert not re.search(r"(?<!\\)[#_](?!\\)", re.sub(r"\$[^$]*\$", "", tables))
    assert tables.isascii()


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(root, tmp_path):
    write_report(make_report(read_experiment("planted", root)), tmp_path)
    (tmp_path / "paper.tex").write_text(
        "\\documentclass{article}\\usepackage{booktabs,tabularx}\\begin{document}"
        "\\input{report.tex}\\end{document}"
    )
    made = subprocess.run(
        ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "paper.tex"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout[-2000:]


def test_speeds_of_the_throughput_lane_stand_before_those_of_shared_devices(planted):
    root = planted()
    folder = root.path / "throughput"
    folder.mkdir()
    row = {"tokens_per_second": 9000.0, "low": 8900.0, "high": 9100.0, "device": "GPU 7"}
    arms = {arm.name: row for arm in read_experiment("planted", root).plan.arms}
    arms["m2rnn-1-first"] = {**row, "tokens_per_second": 4500.0, "low": 4450.0, "high": 4550.0}
    (folder / "planted.json").write_text(json.dumps({"arms": arms}))
    text = to_markdown(make_report(read_experiment("planted", root)))
    assert "tokens a second (GPU 7)" in text
    assert "| 4,500 |" in text
    assert "At equal seconds, in validation subset bits per byte: m2rnn-1-first is worse" in text
    assert " at 50 % | 1." in text  # read at half of its run, beside its token multiplier
