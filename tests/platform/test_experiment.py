from pathlib import Path

import pytest

from arch_search.errors import UsageError
from arch_search.experiment import load, parse_count, parse_share
from arch_search.planning import make_plan

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


def test_an_override_leaves_a_part_of_the_file_out():
    assert load(FIRST).arms.cells
    found = load(FIRST, ["~arms.cells", "~hold"])
    assert found.arms.replace == load(FIRST).arms.replace
    assert not found.arms.cells
    assert not found.hold


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
        ("seeds=2.5", "seeds: expected a whole number or a list or a mapping of keys (got 2.5)"),
        ("tune={learning_rate: [0.1]}", "tune.learning_rate: expected a list of at least 2 (got"),
        ("model.width=1e99", "model.width: expected a whole number (got 1e+99)"),
        ("model=x", "model: expected a mapping of keys (got 'x')"),
        ("model.width=wide", "model.width: expected a whole number (got 'wide')"),
        ("evaluate=perplexity", "evaluate: expected a list (got 'perplexity')"),
        ("evaluate=[7]", "evaluate.0: expected a text or a mapping of keys (got 7)"),
        ("evaluate=[{perplexity: 7}]", "evaluate.0.perplexity: expected a mapping of keys (got 7)"),
        ("contrasts={a: {linear: 7}}", "contrasts.a.linear: expected a text (got 7)"),
        ("contrasts={interaction: {linear: 7}}", "contrasts.interaction.linear: expected a text"),
        ("contrasts={a: {within: {}, of: 7, minus: baseline}}", "contrasts.a.of: expected a text"),
        ("arms.position=[frist]", "'first', 'last', 'before_attention' or 'spread'"),
        ("primary.smallest_effect=few", "is not a share"),
        ("published={source: a paper, valeus: {}}", "did you mean 'values'"),
        ("train.schedule.warmup=1.5", "less than or equal to 1"),
        ("train.optimiser.learning_rate=0", "greater than 0"),
        ("seeds", "is not key=value"),
        ("~armss", "the file has no 'armss' to leave out"),
        ("~arms.vary", "the file has no 'arms.vary' to leave out"),
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
        (
            "defaults: [base, model: tiny_hybird]\nname: a\n",
            "defaults.model: no model 'tiny_hybird'; there are: ",
        ),
        ("defaults: [base, model: tiny_hybird]\n", "Did you mean 'tiny_hybrid'?"),
        ("defaults: [base, modle: tiny_hybrid]\nname: a\n", "no group 'modle'; there are: data, "),
        ("defaults: [bse]\nname: a\n", "no base 'bse'; there are: base, "),
        ("defaults: [base, optional model: x]\nname: a\n", "no group 'optional model'"),
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
    assert "provider" not in str(caught.value)
    assert "\n" not in str(caught.value)


WRONG_LINES = """\
name: wrong
model:
  pattern: gdn*3 attn
  width: 32
  mlp: {width: 32}
data: {corpus: sotu, sequence_length: 32, batch: 8}
train:
  tokens: 25600
  schedule: {warmup: 0.1}
baseline: {}
arms:
  replace: gdn
  with: m2rnn
  count: [1]
  position: [first, last]
contrasts:
  count x position: {levels: position}
evaluate:
  - loss_by_position
  - perplexity: {window: 8}
scales:
  laptop:
    train: {tokens: 1K}
"""


@pytest.mark.parametrize(
    "old, new, line, says",
    [
        ("width: 32\n  mlp", "widht: 32\n  mlp", 4, "unknown key 'model.widht'"),
        ("warmup: 0.1", "warmup: x", 9, "train.schedule.warmup: expected a number"),
        ("[first, last]", "[first, lats]", 15, "arms.position.1: "),
        ("window: 8", "window: x", 20, "evaluate.perplexity.window: expected a whole number"),
        ("window: 8", "widow: 8", 20, "did you mean 'window'"),
        ("tokens: 25600", "tokens: 4", 8, "train.tokens is 4, less than one step"),
        ("replace: gdn", "replace: gru", 12, "arms.replace: no layer"),
        ("levels: position", "levels: place", 17, "contrasts.count x position: no factor"),
        ("name: wrong", "name: a b", 1, "name 'a b' must be"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_line(root, tmp_path, old, new, line, says):
    path = tmp_path / "experiment.yaml"
    assert WRONG_LINES.count(old) == 1
    path.write_text(WRONG_LINES.replace(old, new))
    with pytest.raises(UsageError) as caught:
        make_plan(path, root)
    assert str(caught.value).startswith(f"{path}, line {line}: ")
    assert says in str(caught.value)


def test_a_pattern_of_an_explicit_arm_is_read_as_strictly(root, tmp_path):
    path = tmp_path / "experiment.yaml"
    axes = WRONG_LINES[WRONG_LINES.index("arms:") : WRONG_LINES.index("evaluate:")]
    arms = 'arms:\n  explicit:\n    one: {model: {pattern: "gdn*2 (attn"}}\n'
    path.write_text(WRONG_LINES.replace(axes, arms))
    with pytest.raises(UsageError, match=r"line 13: arms\.explicit\.one: model\.pattern: .*never"):
        make_plan(path, root)


def test_a_line_is_named_only_where_the_mistake_stands(root, tmp_path):
    path = tmp_path / "experiment.yaml"
    path.write_text(WRONG_LINES)
    with pytest.raises(UsageError, match=r"yaml: train\.tokens is 4"):
        make_plan(path, root, ["train.tokens=4"])
    path.write_text(WRONG_LINES.replace("tokens: 1K", "tokens: 4"))
    with pytest.raises(UsageError, match=r"yaml, line 23: train\.tokens is 4"):
        make_plan(path, root, ["scale=laptop"])


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
