"""Training on a person's own text: packed with resets, from prepared data alone."""

import shutil

import pytest

from arch_search.data import load_manifest
from arch_search.errors import Stopped
from arch_search.storage import Root

from .conftest import plan_for, run_one, stop_after, weights_of


@pytest.fixture
def own(tmp_path, monkeypatch) -> Root:
    """A root beside a folder of short texts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    for number in range(60):
        text = " ".join(f"word{(number * i) % 91}" for i in range(10 + number))
        (tmp_path / "texts" / f"{number:02d}.txt").write_text(text)
    return Root(tmp_path / "root").make()


CORPUS = ("data.corpus={folder: texts}", "data.tokenizer={bpe: 300}", "evaluate=[perplexity]")
SHORT = ("data.sequence_length=32", "data.batch=8", "train.tokens=5K")


def _plan(root: Root, *overrides: str):
    return plan_for(root, *CORPUS, *SHORT, *overrides)


def test_a_run_needs_nothing_but_the_prepared_data(own, tmp_path):
    plan = _plan(own)
    shutil.rmtree(tmp_path / "texts")
    run = plan.runs[0]
    folder = run_one(own, plan, run)
    assert folder.result()["steps"] == run.spec.steps
    found = folder.evaluation(plan.evaluations[0])
    assert 0 < found["metrics"]["val/bits_per_byte"] < 8
    kept = load_manifest(own.path, run.spec.data.manifest).folder
    assert (kept / "tokenizer.json").is_file()


def test_resets_change_the_weights_and_not_the_tokens(own):
    results = {}
    for reset in ("false", "true"):
        plan = _plan(own, f"data.reset={reset}")
        results[reset] = run_one(own, plan, plan.runs[0]).result()
    assert results["true"]["stream"] == results["false"]["stream"]
    losses = [result["metrics"]["train/final_loss"] for result in results.values()]
    assert losses[0] != losses[1]


def test_a_resumed_run_with_resets_equals_an_uninterrupted_one(own, tmp_path):
    plan = _plan(own, "data.reset=true")
    run = plan.runs[0]
    whole = run_one(own, plan, run)
    other = Root(tmp_path / "other").make()
    shutil.copytree(own.path / "data", other.path / "data")
    with pytest.raises(Stopped):
        run_one(other, plan, run, before=stop_after(7))
    resumed = run_one(other, plan, run)
    assert resumed.result()["stream"] == whole.result()["stream"]
    assert weights_of(resumed) == weights_of(whole)
