"""Ranks and verdicts against their definitions."""

import math

import numpy as np
import pytest

from arch_search.search.judge import crowding_distances, goes_on, non_dominated_ranks, ordered
from arch_search.search.outcome import importances
from arch_search.sweep_spec import PrunerSpec, RangeSpec, SpaceSpec


def by_definition(points):
    left, ranks, rank = set(range(len(points))), {}, 0
    while left:
        free = {
            i
            for i in left
            if not any(
                all(a <= b for a, b in zip(points[j], points[i], strict=True))
                and tuple(points[j]) != tuple(points[i])
                for j in left
            )
        }
        ranks |= dict.fromkeys(free, rank)
        left -= free
        rank += 1
    return [ranks[i] for i in range(len(points))]


@pytest.mark.parametrize("objectives", [1, 2, 3])
def test_ranks_are_those_of_the_definition_ties_included(objectives):
    rng = np.random.default_rng(objectives)
    for size in (0, 1, 2, 7, 40):
        points = rng.integers(0, 6, size=(size, objectives)).astype(float).tolist()
        assert non_dominated_ranks(points) == by_definition(points)


def test_the_ends_of_a_front_are_least_crowded():
    distances = crowding_distances([(0, 4), (1, 3), (1.1, 2.9), (3, 1), (4, 0)])
    assert distances[0] == distances[-1] == math.inf
    assert distances[3] > distances[1]


def test_a_third_goes_on_for_one_objective_as_for_two():
    rng = np.random.default_rng(3)
    pruner = PrunerSpec(reduction=3)
    for objectives in (1, 2):
        scores = {i: tuple(row) for i, row in enumerate(rng.random((30, objectives)).tolist())}
        kept = [i for i in scores if goes_on(i, scores, pruner)]
        assert len(kept) == 10
        assert set(kept) == set(ordered(scores)[:10])
    assert [i for i in range(3) if goes_on(i, {0: (2.0,), 1: (1.0,), 2: (1.0,)}, pruner)] == [1]
    median = PrunerSpec(rule="median")
    assert [i for i in range(4) if goes_on(i, {i: (float(i),) for i in range(4)}, median)] == [0, 1]


def test_importance_finds_the_planted_parameter_and_no_other():
    from types import SimpleNamespace

    from arch_search.search.trials import Outcome
    from arch_search.sweep_spec import LayoutSpec, SweepSpec

    space = SpaceSpec(layout=LayoutSpec(slots=("gdn", "attn"), depth=(4,)))
    sweep = SweepSpec(space=space, trials=3)
    rng = np.random.default_rng(0)
    trials = []
    for _ in range(60):
        params = {f"layer.{i}": str(rng.choice(["a", "b", "c"])) for i in range(6)}
        params["learning_rate"] = float(rng.random())
        value = (params["layer.2"] == "a") + 0.3 * rng.normal()
        found = {0: Outcome(metrics={"val/bits_per_byte": value})}
        trials.append(SimpleNamespace(params=params, outcomes=found))
    first, *others = importances(sweep, trials, "val/bits_per_byte")  # type: ignore[arg-type]
    assert first.parameter == "layer.2"
    assert first.share > 0.5
    assert all(one.share < 0.15 for one in others)
    assert len(others) == 6
    assert RangeSpec(low=1, high=3).is_whole
