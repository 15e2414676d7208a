"""MAD's score read off experiments, whose outcomes are made up; by hand."""

import json

import pytest
from typer.testing import CliRunner

from arch_search.cli import make_app
from arch_search.errors import UsageError
from arch_search.mad import TASKS, mad_table, mad_task
from arch_search.planning import make_plan
from arch_search.records import read_experiment
from arch_search.storage import Root

FILE = """
defaults: [task]
name: {name}
baseline: {{}}
model: {{pattern: gdn, width: 32, mlp: {{width: 32}}, decoder: {decoder}}}
arms: {{replace: gdn, at: [0], with: [gru]}}
data: {{task: {task}, sequence_length: {length}, batch: 4, items: 64}}
seeds: 2
train: {{tokens: 1K, optimiser: {{learning_rate: {rate}}}}}
primary: {{metric: task/balanced_accuracy}}
evaluate: [task]
"""
NOISY = "{in_context_recall: {vocabulary: 32, noise_vocabulary: 16, noise: 0.2}}"
BASELINES = {
    "in_context_recall": ("in_context_recall", 16),
    "noisy_recall": (NOISY, 16),
    "fuzzy_recall": ("fuzzy_recall", 16),
    "selective_copying": ("{selective_copying: {copied: 4}}", 16),
    "compression": ("compression", 8),
    "memorization": ("memorization", 8),
}


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("ARCH_SEARCH_ROOT", str(tmp_path / "root"))
    return Root(tmp_path / "root").make()


@pytest.fixture
def made(root, tmp_path):
    """Make an experiment on a task, each arm with an accuracy, half a point more in seed 1."""

    def make(name, task, length, accuracies, rate=1e-3):
        decoder = "autoencoder" if task == "compression" else "none"
        path = tmp_path / f"{name}.yaml"
        given = {"name": name, "task": task, "length": length, "rate": rate, "decoder": decoder}
        path.write_text(FILE.format(**given))
        plan = make_plan(path, root)
        root.experiment(plan.name).write_plan(plan)
        for run in plan.runs:
            if run.arm not in accuracies:
                continue
            folder = root.run(run.hash)
            folder.freeze(run.spec)
            folder.attempt(1).path.mkdir(parents=True)
            folder.attempt(1).write_end("FINISHED", "", step=8, time=2.0)
            folder.write_result(
                {"state": "FINISHED", "steps": 8, "tokens": 1024, "metrics": {}, "starts": {},
                 "stream": {"tokens": "", "text": ""}, "started": 1.0, "ended": 2.0,
                 "environment": {}, "branch_scales": {}, "attempt": 1}
            )  # fmt: skip
            value = accuracies[run.arm] + 0.005 * run.seed
            folder.write_evaluation(
                plan.evaluations[0], metrics={"task/balanced_accuracy": value}, tables={}
            )
        return read_experiment(name, root)

    return make


def test_six_tasks_make_the_score_of_each_architecture(made):
    experiments = [
        made(name, task, length, {"baseline": 0.1 * i, "gru": 0.9})
        for i, (name, (task, length)) in enumerate(BASELINES.items())
    ]
    assert [mad_task(e.baseline) for e in experiments] == list(TASKS)
    gdn, gru = mad_table(experiments).rows
    assert (gdn.architecture, gdn.layout, gdn.runs) == ("baseline", "gdn", 12)
    assert gdn.scores == pytest.approx({n: 0.1 * i + 0.0025 for i, n in enumerate(BASELINES)})
    assert gdn.mad == pytest.approx(0.25 + 0.0025)
    assert gru.mad == pytest.approx(0.9025)


def test_a_task_counts_the_best_rate_of_each_setting_and_settings_that_all_have(made):
    experiments = [
        made("low", "in_context_recall", 16, {"baseline": 0.3, "gru": 0.6}, rate=1e-4),
        made("high", "in_context_recall", 16, {"baseline": 0.5, "gru": 0.2}),
        made("wide", "{in_context_recall: {vocabulary: 32}}", 16, {"baseline": 0.1, "gru": 0.1}),
        made("long", "in_context_recall", 32, {"baseline": 1.0}),
    ]
    found = mad_table(experiments)
    gdn, gru = found.rows
    assert gdn.scores["in_context_recall"] == pytest.approx((0.5 + 0.1) / 2 + 0.0025)
    assert gru.scores["in_context_recall"] == pytest.approx((0.6 + 0.1) / 2 + 0.0025)
    assert (gdn.mad, gdn.settings, gdn.runs) == (None, {"in_context_recall": 2}, 6)
    assert len(found.left_out) == 1
    assert "32 tokens, 64 items" in found.left_out[0]


def test_the_command_says_what_is_missing(made):
    made("recall", "in_context_recall", 16, {"baseline": 0.5, "gru": 0.25})
    made("copying", "{selective_copying: {copied: 4}}", 16, {"baseline": 1.0})
    run = CliRunner()
    app = make_app(["mad"])
    said = run.invoke(app, ["mad", "recall", "copying"], env={"COLUMNS": "200"})
    assert said.exit_code == 0, said.output
    assert "0.502" in said.output or "0.503" in said.output
    assert "not every architecture has it: selective_copying" in " ".join(said.output.split())
    found = json.loads(run.invoke(app, ["mad", "recall", "--json"]).stdout)
    assert [row["mad"] for row in found["rows"]] == [None, None]
    made("parity", "{state_tracking: {group: Z2}}", 16, {})
    with pytest.raises(UsageError, match="no finished run on one of MAD's tasks"):
        run.invoke(app, ["mad", "parity"], catch_exceptions=False)
