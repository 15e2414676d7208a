"""Searches on a table of real runs: what pruning and a sampler save against random search."""

import math
import statistics
from pathlib import Path

import pytest

from .tabulate_layouts import SEARCHES, WHOLE, read, replay, spreads

TABLE = read(Path(__file__).with_name("layouts.csv"))


def test_layouts_differ_three_times_as_much_as_seeds():
    layouts = {layout for layout, _, tokens in TABLE if tokens == WHOLE}
    assert len(layouts) == 256
    between, within = spreads(TABLE, WHOLE)
    assert between >= 3 * within


@pytest.mark.slow
def test_a_sweep_with_pruning_needs_less_than_half_of_random_searchs_tokens(root):
    found = replay(TABLE, root, SEARCHES, range(20))
    median = {name: statistics.median(tokens) for name, tokens in found.items()}
    assert all(len(tokens) == 20 and max(tokens) < math.inf for tokens in found.values())
    assert median["pruned"] <= 0.5 * median["random"]
