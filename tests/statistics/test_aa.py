"""Arms that are all the same are found different at the nominal rate.

`aa_runs.csv` holds 96 runs of experiments/aa_seeds.yaml (trained at commit 2fa51d4): one model,
6 data seeds, and for each of them 16 initial seeds. Runs of one data seed saw the same tokens, so
data seeds are true blocks; a pseudo-ablation takes some of them and, within each, hands the runs to
arms by lot. In a real ablation a block shares its initial seed, too; here it cannot, or runs would
be equal.

All pseudo-ablations of a size come from one table, so their rate is that of these 96 runs: about
5 % if noise is nearly normal and equal, which is what the test is about.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from arch_search.statistics.blocked import fit_blocked
from arch_search.statistics.design import design_of
from arch_search.statistics.linear import Weights, weight_matrix
from arch_search.statistics.permutation import permutation_check, t_statistics
from arch_search.statistics.simultaneous import law_on

ABLATIONS = 2_000
SIZES = [(4, 3), (4, 5), (16, 3), (16, 5)]


def runs() -> np.ndarray:
    """Bits per byte, (data seeds, initial seeds)."""
    table = pd.read_csv(Path(__file__).parent / "aa_runs.csv")
    grid = table.pivot_table(index="data_seed", columns=table.groupby("data_seed").cumcount(),
                             values="bits_per_byte")  # fmt: skip
    assert grid.shape == (6, 16)
    assert table["bits_per_byte"].nunique() == 96
    return grid.to_numpy()


def ablations(arms: int, seeds: int) -> np.ndarray:
    """(ablations, seeds, arms): data seeds drawn, and runs handed to arms within each."""
    rng = np.random.default_rng(1000 * arms + seeds)
    drawn = np.empty((ABLATIONS, seeds, arms))
    grid = runs()
    for one in drawn:
        for block, row in zip(rng.permutation(len(grid)), one, strict=False):
            row[:] = rng.permutation(grid[block])[:arms]
    return drawn


def significant(values: np.ndarray, contrasts: dict[str, Weights]) -> int:
    """In how many ablations any contrast of the family is significant at 5 %."""
    _, seeds, arms = values.shape
    names = [f"arm{i}" for i in range(arms)]
    weights = weight_matrix(names, contrasts)
    design = design_of(names * seeds, np.repeat(np.arange(seeds), arms).tolist(), names)
    t = t_statistics(design, values.reshape(len(values), -1).T, weights)
    return int((np.abs(t).max(axis=0) > law_on(design, weights).critical()).sum())


def against_baseline(arms: int) -> dict[str, Weights]:
    return {f"arm{i}": {f"arm{i}": 1.0, "arm0": -1.0} for i in range(1, arms)}


def halves(arms: int) -> dict[str, Weights]:
    """One declared contrast: the first half of the arms minus the second."""
    share = 2 / arms
    return {"halves": {f"arm{i}": share if i < arms // 2 else -share for i in range(arms)}}


@pytest.mark.parametrize("family", [against_baseline, halves])
@pytest.mark.parametrize(("arms", "seeds"), SIZES)
def test_equal_arms_differ_at_the_nominal_rate(arms, seeds, family):
    found = significant(ablations(arms, seeds), family(arms))
    low, high = stats.binom.interval(0.95, ABLATIONS, 0.05)
    assert low <= found <= high


def test_an_effect_that_is_added_is_found():
    """The test above could be passed by finding nothing: here there is something."""
    values = ablations(4, 5)
    values[:, :, 1] -= 4 * runs().std()
    assert significant(values, against_baseline(4)) > 0.99 * ABLATIONS


def test_the_rate_is_that_of_the_code_which_compare_runs():
    for values in ablations(4, 3)[:25]:
        table = pd.DataFrame(
            [(f"arm{a}", s, v) for s, row in enumerate(values) for a, v in enumerate(row)],
            columns=["arm", "seed", "value"],
        )
        fit = fit_blocked(table, baseline="arm0")
        once = significant(values[None], against_baseline(4))
        assert once == any(
            d.p_simultaneous is not None and d.p_simultaneous < 0.05 for d in fit.differences
        )
        assert once == any(d.low is not None and d.low * (d.high or 0) > 0 for d in fit.differences)


def test_permutations_agree_on_the_same_runs():
    found = 0
    for values in ablations(4, 5)[:400]:
        table = pd.DataFrame(
            [(f"arm{a}", s, v) for s, row in enumerate(values) for a, v in enumerate(row)],
            columns=["arm", "seed", "value"],
        )
        found += min(permutation_check(table, baseline="arm0", shuffles=199).p.values()) <= 0.05
    low, high = stats.binom.interval(0.99, 400, 0.05)
    assert low <= found <= high
