"""Figures of synthetic tasks, from records of planned runs whose outcomes are made up."""

import xml.etree.ElementTree as ET

import altair as alt
import numpy as np
import pandas as pd
import pytest

from arch_search.planning import make_plan
from arch_search.records import read_experiment, table
from arch_search.storage import Root
from dashboards import task_figures
from dashboards.figures import to_svg
from dashboards.report import make_report, to_html
from dashboards.task_figures import by_state, draw_tasks, within_reach

FILE = """
defaults: [task]
name: recall
baseline: {}
model:
  pattern: small
  width: 32
  mlp: {width: 32}
  blocks:
    small: {kind: m2rnn, key_dim: 2, value_heads: 1}
    large: {kind: m2rnn, key_dim: 32, value_heads: 1}
    gdn: {kind: gdn, key_dim: 4, value_dim: 4}
arms:
  explicit:
    large: {model: {pattern: large}}
    gdn: {model: {pattern: gdn}}
  factors: [model.pattern]
data: {task: {passkey: {begin: ""}}, sequence_length: 256, batch: 4}
seeds: 2
train: {tokens: 8K}
primary: {metric: task/accuracy}
evaluate: [task, {passkey: {multiples: [1, 2], task: {begin: ""}}}]
"""
VALUES = {"baseline": 0.3, "large": 0.995, "gdn": 0.5}


@pytest.fixture
def experiment(tmp_path):
    path = tmp_path / "recall.yaml"
    path.write_text(FILE)
    root = Root(tmp_path / "root").make()
    plan = make_plan(path, root)
    root.experiment(plan.name).write_plan(plan)
    for run in plan.runs:
        folder = root.run(run.hash)
        folder.freeze(run.spec)
        folder.attempt(1).path.mkdir(parents=True)
        folder.attempt(1).write_end("FINISHED", "", step=8, time=2.0)
        folder.write_result(
            {"state": "FINISHED", "steps": 8, "tokens": 8192, "metrics": {}, "starts": {},
             "stream": {"tokens": str(run.seed), "text": str(run.seed)}, "started": 1.0,
             "ended": 2.0, "environment": {}, "branch_scales": {}, "attempt": 1}
        )  # fmt: skip
        value = VALUES[run.arm] + 0.001 * run.seed
        positions = {
            "length": [256] * 3,
            "position": [251, 252, 253],
            "items": [9] * 3,
            "accuracy": [value] * 3,
            "sequence_accuracy": [value, value / 2, 0],
        }
        folder.write_evaluation(
            plan.evaluations[0], metrics={"task/accuracy": value}, tables={"by_position": positions}
        )
        depth = np.tile((np.arange(10) + 0.5) / 10, 2)
        answers = {
            "label": ["passkey"] * 20,
            "length": [256] * 10 + [512] * 10,
            "depth": depth.tolist(),
            "strict": (depth > 0.5).astype(float).tolist(),
            "distance": [
                round((1 - d) * n) for d, n in zip(depth, [256] * 10 + [512] * 10, strict=True)
            ],
        }
        folder.write_evaluation(
            plan.evaluations[1],
            metrics={"passkey/strict_accuracy_1x": 0.5},
            tables={"answers": answers},
        )
    return read_experiment("recall", root)


def test_a_report_shows_the_task_by_position_by_state_and_by_depth(experiment):
    report = make_report(experiment)
    assert {"sequences", "states", "depths", "distances"} <= set(report.figures)
    page = to_html(report)
    for heading in ("The task, by position", "By size of the state", "By depth and length",
                    "By distance"):  # fmt: skip
        assert f"<h2>{heading}</h2>" in page
    said = {name: " ".join(ET.fromstring(f.svg).itertext()) for name, f in report.figures.items()}
    assert "m2rnn" in said["states"]
    assert "gated_deltanet" in said["states"]
    assert "baseline: passkey" in said["depths"]
    assert report.figures["depths"].svg.count("aria-label") >= 60  # 3 arms, 2 lengths, 10 depths


def right_to(last, positions, arms):
    """Each arm at positions 1, 2, …: all is right up to one, and nothing behind it."""
    place = np.tile(np.arange(1, positions + 1), len(arms))
    right = (place <= last).astype(float)
    return pd.DataFrame({"arm": np.repeat(list(arms), positions), "position": place,
                         "accuracy": right, "sequence_accuracy": right / 2})  # fmt: skip


def drawn_lines(chart):
    """The rows of a chart that it draws lines of."""
    drawn = [pd.DataFrame(data) for data in chart.to_dict()["datasets"].values()]
    return pd.concat(data for data in drawn if "mean" in data)


@pytest.mark.parametrize("many", [1, 99])
def test_long_sequences_are_drawn_by_pooled_positions(experiment, monkeypatch, many):
    arms = [arm.name for arm in experiment.plan.arms]
    monkeypatch.setattr(task_figures, "MANY_ARMS", many)
    chart = task_figures.by_position(experiment, right_to(496, 1024, arms))
    lines = drawn_lines(chart)
    assert len(lines) == 2 * len(arms) * 128  # pooled by eight, both measures
    for _, one in lines.groupby("arm"):
        assert (min(one["position"]), max(one["position"])) == (4.5, 1020.5)
        for where, mean in (("position < 497", 1.0), ("position > 496", 0)):
            assert set(one.query(where)["mean"]) == {mean, mean / 2}
    short = drawn_lines(task_figures.by_position(experiment, right_to(20, 128, arms)))
    assert sorted(set(short["position"])) == list(range(1, 129))


def test_with_many_arms_each_has_a_panel_with_the_training_length(experiment, monkeypatch):
    monkeypatch.setattr(task_figures, "MANY_ARMS", 1)
    arms = [arm.name for arm in experiment.plan.arms]
    drawn = task_figures.by_position(experiment, right_to(20, 300, arms)).to_dict()
    assert drawn["facet"]["sort"][0] == experiment.baseline.name
    (rule,) = (x for x in drawn["spec"]["layer"] if x["mark"]["type"] == "rule")
    assert (rule["encoding"]["x"]["aggregate"], rule["encoding"]["x"]["field"]) == (
        "min", "training",
    )  # fmt: skip
    assert set(drawn_lines(task_figures.by_position(experiment, right_to(20, 300, arms)))[
        "training"
    ]) == {256}  # fmt: skip


def test_more_rows_are_drawn_than_altair_takes_unasked():
    rows = pd.DataFrame({"x": np.arange(6000), "y": 0.0})
    assert "path" in to_svg(alt.Chart(rows).mark_line().encode(x="x:Q", y="y:Q"))


def test_what_stood_near_is_counted_apart(experiment):
    """Right are the needles in the later half: of 256 tokens all within 64 and 128, half in all."""
    recent = within_reach(experiment, table(experiment, "answers"))
    assert sorted(set(recent["within"])) == [64, 128, 256, 512]
    cells = recent.query("panel == 'baseline: passkey'").set_index(["length", "within"])
    seeds = 2
    for (length, within), mean, prompts in (
        ((256, 64), 1.0, 3), ((256, 128), 1.0, 5), ((256, 256), 0.5, 10),
        ((512, 128), 1.0, 3), ((512, 512), 0.5, 10),
    ):  # fmt: skip
        assert cells.loc[(length, within), "mean"] == mean
        assert cells.loc[(length, within), "prompts"] == seeds * prompts
    empty = table(experiment, "answers").drop(columns="distance")
    assert within_reach(experiment, empty).empty


def test_only_a_state_that_suffices_is_marked():
    def marks(best: float) -> int:
        sizes = pd.DataFrame(
            {"mixer": ["m2rnn"] * 2, "arm": ["a", "b"], "seed": [0, 0], "state_bytes": [64, 1024],
             "value": [0.2, best]}
        )  # fmt: skip
        return to_svg(by_state(sizes, "task/accuracy")).count('stroke-dasharray="4,4"')

    assert marks(0.995) == marks(0.5) + 1


def test_states_are_not_drawn_where_they_are_all_equal_or_nothing_is_an_accuracy(experiment):
    alone = [run for run in experiment.runs if run.arm.name != "large"]
    object.__setattr__(experiment, "runs", tuple(alone))
    assert "states" not in draw_tasks(experiment)
