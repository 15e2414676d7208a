"""What was evaluated after an experiment had ended is compared, and mixed with nothing else."""

import pytest

from arch_search.compare import compare
from arch_search.errors import UsageError
from arch_search.records import read_experiment, results
from arch_search.regressions import metric_effects
from arch_search.run_settings import EvaluationSpec


def test_a_later_metric_is_compared_under_a_name_of_its_own(planted):
    root = planted()
    before = compare("planted", root=root)
    for run in root.experiment("planted").plan().runs:
        folder, last = root.run(run.hash), run.arm == "m2rnn-1-last"
        value = 1.5 + 0.2 * last + 0.001 * (run.seed - 2) * (1 - 2 * last)
        folder.write_evaluation(
            EvaluationSpec(task="newlines"), metrics={"newlines/loss": value}, tables={}
        )
        other = EvaluationSpec(task="perplexity", options={"window": 512})
        folder.write_evaluation(other, metrics={"val/bits_per_byte": 9 + value}, tables={})
    found = {arm.arm: arm for arm in compare("planted", metric="newlines/loss", root=root).arms}
    assert found["m2rnn-1-last"].difference == pytest.approx(0.2)
    assert found["baseline"].n == 5
    apart = compare("planted", metric="val/bits_per_byte window:512", root=root)
    assert apart.arms[0].mean == pytest.approx(10.5)
    after = compare("planted", root=root)
    assert [arm.mean for arm in after.arms] == [arm.mean for arm in before.arms]
    assert results("planted", root)["val/bits_per_byte window:512"].between(10, 11).all()
    effects = {(e.arm, e.metric): e for e in metric_effects(read_experiment("planted", root))}
    assert effects["m2rnn-1-last", "newlines/loss"].finding == "worse"
    assert effects["m2rnn-1-last", "val/bits_per_byte window:512"].finding == "worse"


def test_of_two_later_ones_none_hides_the_other(planted):
    root = planted()
    run = root.experiment("planted").plan().runs[0]
    for window in (8, 16):
        root.run(run.hash).write_evaluation(
            EvaluationSpec(task="newlines", options={"window": window, "documents": 3}),
            metrics={"newlines/loss": window / 4},
            tables={},
        )
    measured = read_experiment("planted", root).runs[0].metrics
    named = {name: value for name, value in measured.items() if name.startswith("newlines")}
    assert named == {"newlines/loss window:8": 2.0, "newlines/loss window:16": 4.0}


def test_other_documents_refuse_a_comparison_of_what_was_measured_on_them_alone(planted):
    root = planted()
    for run in root.experiment("planted").plan().runs:
        documents = {"document": ["1905" if run.arm == "baseline" else "1906"], "bytes": [7]}
        root.run(run.hash).write_evaluation(
            EvaluationSpec(task="perplexity", options={"documents": 1}),
            metrics={"val/bits_per_byte": 2.0},
            tables={"documents": documents},
        )
    assert compare("planted", root=root).model is not None
    with pytest.raises(UsageError, match="measured on other documents"):
        compare("planted", metric="val/bits_per_byte documents:1", root=root)
