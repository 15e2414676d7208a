"""Declared contrasts become weights over the arms, or are refused with the reason."""

import itertools

import numpy as np
import pytest

from arch_search.chains import declared_chains
from arch_search.contrasts import resolve_contrasts
from arch_search.errors import UsageError
from arch_search.experiment import ContrastFile
from arch_search.factors import model_matrix, separating_cells
from arch_search.optimal import choose_cells
from arch_search.plan_spec import ArmSpec
from arch_search.spec import DataSpec, LayerSpec, ModelSpec, TrainSpec

MODEL = ModelSpec(
    layers=(LayerSpec(kind="gru", options={}, mlp_width=8),),
    width=8, vocabulary=257, tie_embeddings=True,
)  # fmt: skip
DATA = DataSpec(corpus="sotu", tokenizer="bytes", sequence_length=8, batch=1)


def arm(name, factors, **changes):
    return ArmSpec(name=name, factors=factors, layout="gru", model=MODEL, counts={}, data=DATA,
                   train=TrainSpec(tokens=8), **changes)  # fmt: skip


def grid(**levels):
    cells = [
        dict(zip(levels, values, strict=True)) for values in itertools.product(*levels.values())
    ]
    made = [arm("-".join(map(str, cell.values())), cell) for cell in cells]
    return [arm("baseline", {}, is_baseline=True), *made]


FULL = grid(**{"with": ["m2rnn", "mamba2"]}, count=[1, 2, 4], position=["first", "last"])


def means(arms, effect):
    return {a.name: effect(a.factors) for a in arms if a.factors}


def estimates(declared, arms, effect):
    values = means(arms, effect)
    return {
        c.name: sum(weight * values[name] for name, weight in c.weights.items())
        for c in resolve_contrasts(declared, arms)
    }


def additive(cell):
    place = {"first": 0.0, "last": 0.25}[cell["position"]]
    return (cell["with"] == "m2rnn") * -0.5 + 0.1 * cell["count"] + place


def test_contrasts_give_back_the_effects_that_made_the_means():
    declared = {
        "placebo": "with",
        "count": ContrastFile(linear="count", within={"with": "m2rnn"}),
        "position": ContrastFile(levels="position", within={"with": "m2rnn"}),
    }
    found = estimates(declared, FULL, additive)
    assert found == pytest.approx({"placebo": 0.5, "count": 0.1, "position": 0.25})


def test_over_all_combinations_a_contrast_is_a_difference_of_plain_averages():
    """Whatever the interaction: each m2rnn arm weighs as much as any other."""
    (placebo,) = resolve_contrasts({"placebo": "with"}, FULL)
    assert placebo.weights == pytest.approx(
        {a.name: (1 if a.factors["with"] == "mamba2" else -1) / 6 for a in FULL[1:]}
    )
    assert placebo.text == "mamba2 minus m2rnn"


def test_an_interaction_is_a_difference_of_slopes():
    def effect(cell):
        return 0.3 * cell["count"] * (cell["position"] == "last")

    pair = ContrastFile(interaction=("count", "position"), within={"with": "m2rnn"})
    found = estimates({"both": pair}, FULL, effect)
    assert found == {"both: slope of count x last - first": pytest.approx(0.3)}
    assert estimates({"both": pair}, FULL, additive).popitem()[1] == pytest.approx(0)


def test_many_levels_give_every_pair():
    arms = grid(position=["first", "last", "spread"])
    names = [c.name for c in resolve_contrasts({"position": "position"}, arms)]
    assert names == [
        "position: last - first",
        "position: spread - first",
        "position: spread - last",
    ]


def test_arms_are_set_against_arms_and_against_the_baseline():
    aa = arm("aa", {"control": "aa"}, is_control=True)
    declared = {
        "any": ContrastFile(of={"with": ["m2rnn", "mamba2"], "count": 1}, minus="baseline"),
        "inert": ContrastFile(of="aa", minus="baseline"),
    }
    any_, inert = resolve_contrasts(declared, [*FULL, aa])
    assert any_.weights["baseline"] == -1
    assert sorted(any_.weights.values())[1:] == [0.25] * 4
    assert inert.weights == {"aa": 1, "baseline": -1}
    assert any_.text == "m2rnn or mamba2, count 1 minus baseline"


def test_a_chain_gives_each_step_and_the_whole():
    names = ("baseline", "m2rnn-1-first", "m2rnn-2-first", "m2rnn-4-first")
    found = resolve_contrasts({"steps": ContrastFile(chain=names), "placebo": "with"}, FULL)
    assert [c.weights for c in found[:-1]] == [
        {"m2rnn-1-first": 1, "baseline": -1},
        {"m2rnn-2-first": 1, "m2rnn-1-first": -1},
        {"m2rnn-4-first": 1, "m2rnn-2-first": -1},
        {"m2rnn-4-first": 1, "baseline": -1},
    ]
    assert declared_chains(found) == {"steps": (names, tuple(c.name for c in found[:-1]))}
    assert declared_chains(found[:3]) == {}


def test_controls_enter_no_average():
    aa = arm("aa", {"control": "aa"}, is_control=True)
    with_, without = (resolve_contrasts({"p": "with"}, arms) for arms in ([*FULL, aa], FULL))
    assert with_ == without


def test_a_cell_that_is_another_arm_counts_as_both():
    arms = grid(count=[1, 2], position=["first", "last"])
    merged = [a for a in arms if a.name != "2-last"]
    i = [a.name for a in merged].index("2-first")
    merged[i] = arm("2-first", merged[i].factors, also=({"count": 2, "position": "last"},))
    (found,) = resolve_contrasts({"count": ContrastFile(linear="count")}, merged)
    assert found.weights == pytest.approx({"1-first": -0.5, "1-last": -0.5, "2-first": 1.0})


def test_a_part_of_the_combinations_rests_on_effects_adding_up_and_says_so():
    cells = choose_cells([dict(a.factors) for a in FULL[1:]], 6, [])
    arms = [a for a in FULL if a.factors in cells]
    (found,) = resolve_contrasts({"placebo": "with"}, arms)
    assert "assumes that effects add up" in found.text
    assert estimates({"placebo": "with"}, arms, additive) == {"placebo": pytest.approx(0.5)}


@pytest.mark.parametrize(
    "declared, says",
    [
        ({"a": "wiht"}, "contrasts.a: no factor is called 'wiht'; did you mean 'with'"),
        ({"a": ContrastFile(levels="count", within={"with": "m2rn"})}, "did you mean 'm2rnn'"),
        ({"a": ContrastFile(levels="count", within={"wit": "m2rnn"})}, "did you mean 'with'"),
        ({"a": ContrastFile(linear="position")}, "no numbers"),
        ({"a": ContrastFile()}, "give one of levels, linear"),
        ({"a": ContrastFile(levels="count", linear="count")}, "got levels, linear"),
        ({"a": ContrastFile(of="baseline")}, "of with minus"),
        ({"a": ContrastFile(of="nobody", minus="baseline")}, "no arm is called 'nobody'"),
        ({"a": ContrastFile(of="baseline", minus="baseline")}, "are the same arms"),
        ({"a": ContrastFile(levels="with", within={"with": "m2rnn"})}, "has one level here"),
        ({"a": ContrastFile(levels="count", within={"count": 1, "with": "gru"})}, "no level gru"),
        ({"a": ContrastFile(chain=("baseline", "m2rnn-1-firs", "m2rnn-1-last"))}, "did you mean"),
        ({"a": ContrastFile(chain=("baseline", "m2rnn-1-last"))}, "three arms or more"),
        ({"a": ContrastFile(chain=("baseline", "m2rnn-1-last", "baseline"))}, "each once"),
    ],
)
def test_what_cannot_be_asked_is_refused(declared, says):
    with pytest.raises(UsageError, match=says):
        resolve_contrasts(declared, FULL)


def test_what_the_arms_cannot_tell_is_refused_with_those_that_would_help():
    cells = [{"count": 1, "position": "first"}, {"count": 2, "position": "last"}]
    arms = [arm(f"{i}", cell) for i, cell in enumerate(cells)]
    with pytest.raises(UsageError, match=r"count and position move together.*count 1 with"):
        resolve_contrasts({"a": "count"}, arms)
    helped = [*cells, *separating_cells(cells, "count", "position")]
    assert len(helped) == 3
    arms = [arm(f"{i}", cell) for i, cell in enumerate(helped)]
    assert len(resolve_contrasts({"a": "count", "b": "position"}, arms)) == 2


def log_det(cells):
    matrix = model_matrix(cells, ["with", "count", "position"], [("count", "position")])
    left = np.linalg.svd(matrix @ np.random.default_rng(0).normal(size=(matrix.shape[1], 7)))[1]
    return float(np.sum(np.log(np.maximum(left, 1e-12))))


def test_a_chosen_subset_tells_more_than_others_of_its_size():
    """Seven effects (with, count, position and one interaction) by 8 of 12 cells."""
    cells = [dict(a.factors) for a in FULL[1:]]
    chosen = choose_cells(cells, 8, [("count", "position")])
    assert len(chosen) == 8
    every = [log_det(list(subset)) for subset in itertools.combinations(cells, 8)]
    assert log_det(chosen) == pytest.approx(max(every), abs=1e-6)
    assert min(every) < max(every) - 1  # or there would be nothing to choose
    assert chosen == choose_cells(cells, 8, [("count", "position")])


def test_a_chosen_subset_tells_what_is_asked_within_some_levels():
    """Nine of 16 cells tell the effects over all; among the arms of one mixer it takes care."""
    arms = grid(**{"with": ["m", "mamba2"]}, count=[1, 2], position=["first", "last"], salt=[1, 2])
    cells = [dict(a.factors) for a in arms[1:]]
    within = {"with": "m"}
    pairs = [("count", "position")]
    declared = {
        "count": ContrastFile(linear="count", within=within),
        "both": ContrastFile(interaction=pairs[0]),
    }
    for number, asked in ((9, [within]), (11, [within, {"with": ["mamba2"], "count": [1, 2]}])):
        chosen = choose_cells(cells, number, pairs, asked)
        found = resolve_contrasts(declared, [a for a in arms if a.factors in chosen])
        assert [c.name for c in found] == ["count", "both: slope of count x last - first"]
    with pytest.raises(UsageError, match=r"9 arms cannot tell all effects within .* choose more"):
        choose_cells(cells, 9, pairs, [within, {"with": "mamba2"}])


@pytest.mark.parametrize("count, says", [(4, "choose at least 5"), (13, "13 of 12")])
def test_a_subset_too_small_or_too_large_is_refused(count, says):
    with pytest.raises(UsageError, match=says):
        choose_cells([dict(a.factors) for a in FULL[1:]], count, [])
