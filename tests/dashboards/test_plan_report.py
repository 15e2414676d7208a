"""A plan as files: what it warns of first, which levels meet, the sizes of its arms."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from typer.testing import CliRunner

from arch_search.cli import make_app
from arch_search.errors import UsageError
from arch_search.planning import make_plan
from arch_search.storage import ROOT_VARIABLE, Root
from dashboards.plan_figures import crossings, short_count
from dashboards.plan_report import make_plan_report, write_plan_report

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return Root(tmp_path_factory.mktemp("plans")).make()


@pytest.fixture(scope="module")
def published(root):
    return make_plan(EXPERIMENTS / "published_ablation.yaml", root)


def test_every_finding_stands_in_the_report_warnings_first(published, root, tmp_path):
    paths = write_plan_report(published, root, tmp_path / "made")
    assert {path.name for path in paths} == {"report.md", "arms.svg", "crossings.svg"}
    text = (tmp_path / "made" / "report.md").read_text()
    for finding in published.findings:
        assert f"**{finding.subject}**: {finding.text}" in text
    places = [text.index(f"## {level}") for level in ("Warnings", "Residues", "Limits")]
    assert places == sorted(places)
    drawn = " ".join(ET.parse(tmp_path / "made" / "arms.svg").getroot().itertext())
    assert all(arm.name in drawn for arm in published.arms)
    assert "475 M" in drawn  # the GRU's parameters


def test_count_and_position_of_the_published_arms_meet_in_two_of_four_pairs(published):
    pairs = crossings(published)
    assert {pair.where for pair in pairs} == {
        "m2rnn among gated_deltanet layers",
        "m2rnn among mamba2 layers",
    }
    for pair in pairs:
        cells = {(cell["count"], cell["position"]) for cell in pair.cells}
        assert cells == {(1, "first"), (3, "before_attention")}
        assert pair.missing == 2


def test_each_mixer_says_what_comes_with_it(published, root):
    rows = {row.name: row for row in make_plan_report(published, root).mixers}
    assert rows["m2rnn"].state == "86,016"
    assert rows["m2rnn"].decayed == "yes"
    assert rows["gru"].decayed == "no"
    assert rows["gated_deltanet"].recurrence == "–"
    assert rows["m2rnn"].recurrence == "1 (the identity)"
    assert {"attention (position none)", "attention (position rope)"} <= set(rows)


def test_a_full_crossing_has_no_gap(root):
    pairs = crossings(make_plan(EXPERIMENTS / "count_x_position.yaml", root, ["scale=laptop"]))
    assert {frozenset((pair.one, pair.other)) for pair in pairs} >= {
        frozenset(("count", "position")),
        frozenset(("with", "count")),
    }
    assert not any(pair.missing for pair in pairs)


def test_the_command_writes_where_it_is_told_to(tmp_path, monkeypatch):
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / "root"))
    file, folder = str(EXPERIMENTS / "aa.yaml"), tmp_path / "made" / "here"
    arguments = ["plan", file, "--output", str(folder)]
    outcome = CliRunner().invoke(make_app(arguments), arguments)
    assert outcome.exit_code == 0, outcome.output
    assert str(folder / "report.md") in outcome.output.replace("\n", "")
    assert (folder / "arms.svg").read_text().startswith("<svg")
    arguments[-1] = __file__
    outcome = CliRunner().invoke(make_app(arguments), arguments)
    assert isinstance(outcome.exception, UsageError)
    assert "--output" in str(outcome.exception)


def test_a_sweep_has_no_arms_to_show_before_it_runs(root):
    plan = make_plan(EXPERIMENTS / "sweep_hybrid_layout.yaml", root)
    with pytest.raises(UsageError, match="it has no arms to show before it runs"):
        make_plan_report(plan, root)


@pytest.mark.parametrize(
    "value, text", [(32_640, "32.6 K"), (999_900, "1 M"), (406.6e6, "407 M"), (1.01e9, "1.01 G")]
)
def test_counts_are_short(value, text):
    assert short_count(value) == text
