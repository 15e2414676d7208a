"""Arms left out of a plan: which, what stays as it was, and what can then not be asked."""

import itertools

import pytest

from arch_search.errors import UsageError
from arch_search.planning import make_plans

from .conftest import FIRST, SMALL

AXES = (
    *("arms.cells=[]", "arms.at=[0]", "seeds=2"),
    "arms.vary={nonlinearity: [tanh, identity], write: [outer, delta], value_heads: [2, 4]}",
    "arms.controls={gru: {with: gru}}",
)
CHOSEN = (*AXES, "arms.choose=6")
SQUARE = (*AXES, "arms.vary.value_heads=[2]")
LENGTHS = ("arms.lengths=[32, 64]", "arms.explicit={wide: {model: {mlp: {width: 64}}}}")


def planned(root, *overrides):
    return make_plans(FIRST, root, [*SMALL, *overrides])[0]


def names(plan):
    return [arm.name for arm in plan.arms]


def runs(plan):
    return {(run.arm, run.seed): run.hash for run in plan.runs}


def dropped(root, entries, *overrides):
    """The names that a plan loses; all else of its arms and runs must be as without `drop`."""
    whole, left = planned(root, *overrides), planned(root, *overrides, f"arms.drop=[{entries}]")
    gone = set(names(whole)) - set(names(left))
    assert left.arms == tuple(arm for arm in whole.arms if arm.name not in gone)
    assert runs(left) == {key: hash for key, hash in runs(whole).items() if key[0] not in gone}
    return gone


def test_what_is_dropped_by_name_leaves_the_chosen_others_and_their_runs(root):
    for arm in names(planned(root, *CHOSEN))[1:]:
        assert dropped(root, arm, *CHOSEN) == {arm}


@pytest.mark.parametrize(
    "entries, gone",
    [
        ("{write: delta}", {"tanh-delta", "identity-delta"}),
        ("{nonlinearity: identity, write: delta}", {"identity-delta"}),
        ("{nonlinearity: [identity, tanh], write: outer}", {"tanh-outer", "identity-outer"}),
        ("{control: gru}, {nonlinearity: identity}", {"gru", "identity-outer", "identity-delta"}),
        ("m2rnn-tanh-outer-value_heads=2, gru", {"tanh-outer", "gru"}),
    ],
)
def test_levels_drop_the_arms_that_have_all_of_them(root, entries, gone):
    expected = {name if name == "gru" else f"m2rnn-{name}-value_heads=2" for name in gone}
    assert dropped(root, entries, *SQUARE) == expected


@pytest.mark.parametrize(
    "entries, gone",
    [
        ("wide-sequence_length=64", ["wide-sequence_length=64"]),
        ("{arm: wide}", ["wide-sequence_length=32", "wide-sequence_length=64"]),
        ("{data.sequence_length: 64}",
         [f"{arm}-sequence_length=64" for arm in ("baseline", "m2rnn-1-first", "wide")]),
    ],
)  # fmt: skip
def test_an_arm_of_a_length_has_its_name_and_its_level(root, entries, gone):
    assert dropped(root, entries, *LENGTHS) == set(gone)


def test_an_arm_goes_with_any_cell_that_is_the_same_model(root):
    both = ("arms.cells=[{count: 1, position: last}, {count: 2, position: first}, "
            "{count: 2, position: last}]",)  # fmt: skip
    assert names(planned(root, *both)) == ["baseline", "m2rnn-1-last", "m2rnn-2-first"]
    assert dropped(root, "{count: 2, position: last}", *both) == {"m2rnn-2-first"}


def test_the_arm_that_the_others_were_sized_by_may_go(root):
    sized = (*CHOSEN, "~baseline", "~arms.controls", "hold={parameters: 5%, by: mlp.width}")
    first, second = planned(root, *sized).arms[:2]
    assert dict(second.held) != dict(first.held)  # the second is not what the others are sized by
    assert dropped(root, first.name, *sized) == {first.name}


def test_the_arm_whose_rate_was_tuned_for_all_may_go(root):
    tuned = ("tune={learning_rate: [1e-3, 3e-3], per: with}", "arms.cells=[]", "arms.count=[1, 2]",
             "arms.position=first")  # fmt: skip
    _, whole = make_plans(FIRST, root, [*SMALL, *tuned])
    _, left = make_plans(FIRST, root, [*SMALL, *tuned, "arms.drop=[m2rnn-2-first]"])
    assert whole is not None
    assert left is not None
    assert runs(left) == runs(whole)


@pytest.mark.parametrize(
    "entries, says",
    [
        ("m2rnn-tanh-outr-value_heads=2",
         "arms.drop: no arm is called 'm2rnn-tanh-outr-value_heads=2'; did you mean "
         "'m2rnn-tanh-outer-value_heads=2'?"),
        ("{wriet: delta}", "arms.drop: no factor is called 'wriet'; did you mean 'write'?"),
        ("{write: dleta}", "arms.drop: write has no level dleta; did you mean 'delta'?"),
        ("{control: gru, write: outer}", "arms.drop: no factor is called 'write'; known here: con"),
        ("{with: m2rnn, value_heads: 4}", "arms.drop: value_heads has no level 4 among m2rnn;"),
        ("gru, baseline", "arms.drop matches 'baseline', which all others are compared with"),
        ("{}", "arms.drop matches 'baseline'"),
        ("gru, {with: m2rnn}", "arms.drop leaves no arm to compare"),
        ("7", "arms.drop.0: expected a text or a mapping of keys (got 7)"),
    ],
)  # fmt: skip
def test_what_cannot_be_dropped_is_refused_in_a_line(root, entries, says):
    with pytest.raises(UsageError) as caught:
        planned(root, *SQUARE, f"arms.drop=[{entries}]")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_baseline_stays_at_every_length(root):
    with pytest.raises(UsageError, match="matches 'baseline-sequence_length=32'"):
        planned(root, *LENGTHS, "arms.drop=[{data.sequence_length: 32}]")


def test_contrasts_are_weighed_over_what_is_left(root):
    asked = (*SQUARE, "contrasts={write: write}")
    arm = {key: f"m2rnn-{'-'.join(key)}-value_heads=2"
           for key in itertools.product(("tanh", "identity"), ("outer", "delta"))}  # fmt: skip
    (whole,) = planned(root, *asked).contrasts
    assert whole.weights == {name: 0.5 if "delta" in name else -0.5 for name in arm.values()}
    gone = arm["identity", "delta"]
    (left,) = planned(root, *asked, f"arms.drop=[{gone}]").contrasts
    # of effects that add up, the arm without a partner tells the nonlinearity's alone
    assert left.weights == {arm["tanh", "delta"]: 1, arm["tanh", "outer"]: -1}
    assert "assumes that effects add up" in left.text


@pytest.mark.parametrize(
    "contrast, entries, says",
    [
        ("GRU: {of: gru, minus: baseline}", "gru",
         "contrasts.GRU: not to be told without what arms.drop leaves out; take it out as well, "
         "'~contrasts.GRU' (no arm is called 'gru'; "),
        ("write: write", "{write: delta}", "'~contrasts.write' (write has one level here"),
        ("write: {levels: write, within: {nonlinearity: tanh}}", "{nonlinearity: tanh}",
         "'~contrasts.write', and list the arms in arms.cells, as arms.choose would choose others "
         "without it (nonlinearity has no level tanh"),
        ("write: wriet", "gru", "contrasts.write: no factor is called 'wriet'"),
    ],
)  # fmt: skip
def test_a_contrast_that_needs_what_is_dropped_says_how_to_go_on(root, contrast, entries, says):
    asked = (*CHOSEN, f"contrasts={{{contrast}}}", f"arms.drop=[{entries}]")
    with pytest.raises(UsageError) as caught:
        planned(root, *asked)
    assert says in str(caught.value)
    if "'~contrasts." in says and "arms.cells" not in says:
        override = says[says.index("'~") + 1 :].partition("'")[0]
        assert planned(root, *asked, override).contrasts == ()


def test_what_was_left_out_bounds_what_is_found(root):
    def left_out(plan):
        return [(one.level, one.text) for one in plan.findings if one.subject == "arms left out"]

    (found,) = left_out(planned(root, *SQUARE, "arms.drop=[gru, {write: delta}]"))
    assert found[0] == "limit"
    assert found[1].startswith("left out by arms.drop: gru; write delta.")
    assert left_out(planned(root, *SQUARE)) == []
