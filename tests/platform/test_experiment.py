from pathlib import Path

import pytest

from arch_search.errors import UsageError
from arch_search.experiment import load, parse_count, parse_share

FIRST = Path(__file__).parents[2] / "experiments" / "first_ablation.yaml"


def test_the_first_ablation_reads_with_its_defaults_under_it():
    file = load(FIRST)
    assert file.model.pattern == "(gdn*3 attn)*2"
    assert file.data.corpus == "sotu"
    assert file.train.tokens == 250_000
    assert file.primary.smallest_effect == pytest.approx(0.003)
    assert file.baseline == {}


def test_an_override_wins_over_the_file_and_the_file_over_its_defaults():
    file = load(FIRST, ["seeds=5", "train.tokens=1M", "model.mlp.width=96"])
    assert (file.seeds, file.train.tokens, file.model.mlp.width) == (5, 1_000_000, 96)
    assert file.train.optimiser.learning_rate == 3e-3


@pytest.mark.parametrize(
    "text, value",
    [("250K", 250_000), ("2M", 2_000_000), ("1.5B", 1_500_000_000), ("2e6", 2_000_000), (7, 7)],
)
def test_counts(text, value):
    assert parse_count(text) == value


@pytest.mark.parametrize("text, value", [("0.3%", 0.003), ("0.003", 0.003), (0.5, 0.5)])
def test_shares(text, value):
    assert parse_share(text) == pytest.approx(value)


@pytest.mark.parametrize(
    "override, says",
    [
        ("modle.width=3", "unknown key 'modle'; did you mean 'model'"),
        ("train.token=3", "unknown key 'train.token'; did you mean 'tokens'"),
        ("train.optimiser.learning_rat=1", "did you mean 'learning_rate'"),
        ("train.schedule.wramup=1", "did you mean 'warmup'"),
        ("arms.wiht=gru", "did you mean 'with'"),
        ("model.mlp.widht=4", "did you mean 'width'"),
        ("seeds={init: [1], dat: [2]}", "did you mean 'data'"),
        ("log.evry=3", "did you mean 'every'"),
        ("resources.cpu=3", "did you mean 'cpus'"),
        ("primary.metrc=3", "did you mean 'metric'"),
        ("tracking.url=3", "did you mean 'uri'"),
        ("train.tokens=2MM", "is not a count"),
        ("train.tokens=0", "greater than 0"),
        ("model.width=-4", "greater than 0"),
        ("seeds=2.5", "valid integer"),
        ("arms.position=[frist]", "'first', 'last', 'before_attention' or 'spread'"),
        ("primary.smallest_effect=few", "is not a share"),
        ("published={source: a paper, valeus: {}}", "did you mean 'values'"),
        ("train.schedule.warmup=1.5", "less than or equal to 1"),
        ("train.optimiser.learning_rate=0", "greater than 0"),
        ("seeds", "is not key=value"),
    ],
)
def test_a_wrong_key_or_value_is_one_line_that_says_what_to_do(override, says):
    with pytest.raises(UsageError) as caught:
        load(FIRST, [override])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text, says",
    [
        ("name: [", "line 1"),
        ("- a\n- b\n", "a mapping of keys"),
        ("defaults: [base, model: tinny]\nname: a\n", "tinny"),
        ("defaults: base\nname: a\n", "must be a list"),
        ("name: a\nname: b\n", "duplicate"),
        ("defaults: [base]\nname: a\ndata: {corpus: sotu}\n", "missing"),
        ("name: ${nothing}\n", "nothing"),
    ],
)
def test_a_file_that_cannot_be_read_names_itself(tmp_path, text, says):
    path = tmp_path / "experiment.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(UsageError, match="no experiment file"):
        load(tmp_path / "nothing.yaml")


SCALED = (
    FIRST.read_text()
    + """
scales:
  laptop:
    hold: null
    train: {tokens: 4K}
    data: {corpus: {folder: texts}}
"""
)


def test_a_scale_changes_the_file_and_its_name(tmp_path):
    path = tmp_path / "first.yaml"
    path.write_text(SCALED)
    full, small = load(path), load(path, ["train.tokens=8K", "scale=laptop"])
    assert full == load(FIRST)
    assert small.name == f"{full.name}-laptop"
    assert small.train.tokens == 8000, "an override wins over the scale"
    assert full.hold
    assert not small.hold, "null takes a key out"
    assert small.arms == full.arms
    assert small.data.corpus == {"folder": "texts"}


def test_an_unknown_scale_names_those_there_are(tmp_path):
    path = tmp_path / "first.yaml"
    path.write_text(SCALED)
    with pytest.raises(UsageError, match=r"no scale 'lptop'; scales of this file: laptop"):
        load(path, ["scale=lptop"])
    with pytest.raises(UsageError, match="scales of this file: none"):
        load(FIRST, ["scale=laptop"])
