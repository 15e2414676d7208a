import pytest

from arch_search.design import make_arms, rank_layers
from arch_search.errors import UsageError
from arch_search.experiment import ArmsFile
from arch_search.pattern import parse_pattern

LAYERS = parse_pattern("(gdn*3 attn)*4")
GDN = [i for i, name in enumerate(LAYERS) if name == "gdn"]
ATTENTION = [3, 7, 11, 15]


def arms_of(baseline=True, **arms):
    return make_arms(
        ArmsFile(**arms),
        LAYERS,
        baseline=baseline,
        is_attention=lambda name: name == "attn",
        solve=lambda block, axis, knob, target: target // 100,
    )


@pytest.mark.parametrize(
    "position, count, layers",
    [
        ("first", 2, (0, 1)),
        ("last", 2, (13, 14)),
        ("before_attention", 1, (2,)),
        ("before_attention", 4, (2, 6, 10, 14)),
        ("before_attention", 5, (1, 2, 6, 10, 14)),
        ("spread", 1, (8,)),  # floor(0.5 * 12) = the 6th of 12
        ("spread", 2, (4, 12)),  # the 3rd and the 9th
        ("spread", 4, (1, 5, 9, 13)),
        ((14, 0), 1, (14,)),
        ((14, 0), 2, (0, 14)),
    ],
)
def test_a_position_is_a_ranking_and_a_count_takes_a_prefix(position, count, layers):
    assert rank_layers(GDN, position, count, ATTENTION) == layers


def test_layers_after_the_last_attention_rank_last_before_attention():
    replaceable, attention = [0, 1, 3, 4], [2]
    assert rank_layers(replaceable, "before_attention", 3, attention) == (0, 1, 3)


@pytest.mark.parametrize(
    "position, count, says",
    [
        ("first", 13, "13 layers; only 12"),
        ("spread", 13, "13 layers; only 12"),
        ((3,), 1, "layer 3, which cannot be replaced"),
        ((0,), 2, "2 layers; only 1"),
    ],
)
def test_impossible_places_are_refused(position, count, says):
    with pytest.raises(UsageError, match=says):
        rank_layers(GDN, position, count, ATTENTION)


def test_before_attention_without_attention_is_refused():
    with pytest.raises(UsageError, match="needs an attention layer"):
        rank_layers([0, 1], "before_attention", 1, [])


def test_a_full_factorial_with_a_placebo_and_a_baseline_run_once():
    arms = arms_of(replace="gdn", with_=("m2rnn", "gru"), count=(1, 2), position=("first", "last"))
    assert [arm.name for arm in arms] == [
        "baseline",
        *(f"{w}-{c}-{p}" for w in ("m2rnn", "gru") for c in (1, 2) for p in ("first", "last")),
    ]
    assert arms[0].layers == LAYERS
    assert arms[0].factors == {}
    for arm in arms[1:]:
        differing = [i for i, name in enumerate(arm.layers) if name != LAYERS[i]]
        assert len(differing) == arm.factors["count"]
        assert {arm.layers[i] for i in differing} == {arm.factors["with"]}


def test_cells_list_a_part_of_the_factorial():
    arms = arms_of(
        replace="gdn",
        with_=("m2rnn",),
        cells=({"count": 1, "position": "first"}, {"count": 2, "position": "spread"}),
    )
    assert [arm.name for arm in arms] == ["baseline", "m2rnn-1-first", "m2rnn-2-spread"]
    assert arms[2].replaced == (4, 12)


def test_vary_overrides_options_of_the_replaced_layers_only():
    arms = arms_of(
        baseline=False,
        replace="gdn",
        with_=("m2rnn",),
        at=(2,),
        vary={"nonlinearity": ["tanh", "identity"], "state": {"elements": ["4K"], "by": "key_dim"}},
    )
    assert [arm.options for arm in arms] == [
        {"nonlinearity": "tanh", "key_dim": 40},
        {"nonlinearity": "identity", "key_dim": 40},
    ]
    assert {arm.replaced for arm in arms} == {(2,)}
    assert [arm.name for arm in arms] == ["m2rnn-tanh-state=4000", "m2rnn-identity-state=4000"]
    assert arms[1].factors["state"] == 4000


def test_a_state_size_is_set_by_an_option_of_each_block():
    by = {"m2rnn": "key_dim", "mamba2": "state_dim"}
    given = {"replace": "gdn", "at": (2,), "vary": {"state": {"elements": ["4K"], "by": by}}}
    arms = arms_of(baseline=False, with_=("m2rnn", "mamba2"), **given)
    assert [list(arm.options) for arm in arms] == [["key_dim"], ["state_dim"]]
    with pytest.raises(UsageError, match="no option for 'gru'; given for m2rnn, mamba2"):
        arms_of(baseline=False, with_=("gru",), **given)


def test_without_count_every_layer_is_replaced():
    (arm,) = arms_of(baseline=False, replace="gdn", with_=("gru",))
    assert arm.layers == parse_pattern("(gru*3 attn)*4")


@pytest.mark.parametrize(
    "arms, says",
    [
        ({"replace": "gdnn", "with_": ("m2rnn",)}, "did you mean 'gdn'"),
        ({"with_": ("m2rnn",)}, "which block is replaced"),
        ({"replace": "gdn"}, "arms.with is missing"),
        ({"replace": "gdn", "with_": ("m2rnn",), "count": (1,)}, "go together"),
        ({"replace": "gdn", "with_": ("a",), "at": (0,), "count": (1,)}, "not both"),
        ({"replace": "gdn", "with_": ("a",), "cells": ({"cuont": 1},)}, "did you mean 'count'"),
        (
            {"replace": "gdn", "with_": ("a",), "cells": ({"count": 0, "position": "first"},)},
            "count",
        ),
        (
            {"replace": "gdn", "with_": ("a",), "cells": ({"count": 1, "position": "frist"},)},
            "first",
        ),
        ({"replace": "gdn", "with_": ("a",), "cells": ({"count": 1},)}, "without a position"),
        (
            {"replace": "gdn", "with_": ("a", "b"), "cells": ({"count": 1, "position": "last"},)},
            "with",
        ),
        ({"replace": "gdn", "with_": ("a",), "vary": {"gate": "tanh"}}, "list of values"),
        ({"replace": "gdn", "with_": ("a",), "vary": {"state": {"elements": [4]}}}, "by: key_dim"),
        ({"replace": "gdn", "with_": ("a",), "at": (3,)}, "layer 3"),
        *(
            (
                {"replace": "gdn", "with_": ("a",), "count": (1,), "position": ("first",), **given},
                rf"arms\.{where}: {axis} is .*; expected {kind}",
            )
            for axis, level, kind in (
                ("with", 1, "the name of a block"),
                ("count", "two", "a whole number"),
                ("position", {"first": 1}, "a list of layers, or a ranking's name"),
                ("at", "first", "a list of layers"),
            )
            for where, given in (
                ("cells", {"cells": ({"count": 1, "position": "first", axis: level},)}),
                (r"controls\.c", {"controls": {"c": {axis: level}}}),
            )
        ),
    ],
)
def test_axes_that_do_not_fit_are_refused_with_the_reason(arms, says):
    with pytest.raises(UsageError, match=says):
        arms_of(**arms)


def test_an_experiment_without_any_arm_is_refused():
    with pytest.raises(UsageError, match="no arm"):
        arms_of(baseline=False)


def test_a_control_of_another_block_takes_the_place_but_not_the_options_that_vary():
    arms = arms_of(
        replace="gdn",
        with_=("m2rnn",),
        at=(2, 6),
        vary={"nonlinearity": ["tanh", "identity"]},
        controls={"gru": {"with": "gru"}, "late": {"at": [14]}},
    )
    found = {arm.name: (arm.replaced, arm.options) for arm in arms if arm.is_control}
    assert found == {"gru": ((2, 6), {}), "late": ((14,), {"nonlinearity": "tanh"})}
