"""Intervals against cases worked by hand, published tables, and simulation."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from arch_search.statistics.blocked import fit_blocked
from arch_search.statistics.draws import Draws
from arch_search.statistics.linear import EQUAL_DIFFERENCES, EQUAL_SEEDS
from arch_search.statistics.permutation import permutation_check
from arch_search.statistics.power import resolvable_in_noise
from arch_search.statistics.simultaneous import law_of, resolvable


def table_of(values: dict[str, list[float]]) -> pd.DataFrame:
    rows = [(a, s, v) for a, seeds in values.items() for s, v in enumerate(seeds) if v == v]
    return pd.DataFrame(rows, columns=["arm", "seed", "value"])


@pytest.mark.parametrize(
    ("contrasts", "df", "published"),
    # two-sided 5 % points of Dunnett (Biometrics 20, 1964, table 2)
    [(1, 5, 2.57), (2, 5, 3.03), (3, 6, 3.10), (3, 10, 2.76), (9, 20, 2.95), (5, 60, 2.58)],
)
def test_with_one_variance_for_all_arms_critical_values_are_those_published(
    contrasts, df, published
):
    rng = np.random.default_rng(0)
    variance = np.tile(rng.chisquare(df, 200_000)[:, None] / df, contrasts + 1)
    draws = Draws(effects=rng.normal(size=variance.shape), variances=variance)
    weights = np.column_stack([-np.ones(contrasts), np.eye(contrasts)])
    assert law_of(draws, weights, weights**2).critical() == pytest.approx(published, abs=0.02)


def test_two_arms_equal_the_paired_t_test():
    table = table_of({"base": [1.0, 2.0, 4.0], "arm": [1.5, 2.25, 4.75]})
    fit = fit_blocked(table, baseline="base")
    paired = stats.ttest_rel([1.5, 2.25, 4.75], [1.0, 2.0, 4.0])
    interval = paired.confidence_interval(0.95)
    (difference,) = fit.differences
    assert difference.value == pytest.approx(0.5)
    ends = (difference.low, difference.high)
    assert ends == pytest.approx((interval.low, interval.high), rel=1e-3)
    assert difference.p_simultaneous == pytest.approx(paired.pvalue, rel=1e-3)
    assert difference.p_holm == pytest.approx(paired.pvalue, rel=1e-3)
    assert fit.df == 2


def test_three_arms_by_hand():
    # Seed means 1 apart; residuals +-0.1 by construction, so SS = 4 * 0.01 = 0.04 on 2 df.
    table = table_of({"base": [1.1, 1.9], "a": [2.0, 3.0], "b": [2.9, 4.1]})
    fit = fit_blocked(table, baseline="base")
    assert fit.df == 2
    assert fit.residual_sd == pytest.approx(np.sqrt(0.02))
    assert [d.value for d in fit.differences] == pytest.approx([1.0, 2.0])
    # Residuals: base -+0.1 and b +-0.1, a none; each arm has 2/3 of a degree of freedom. So base
    # and b count with 0.02 / (2/3) = 0.03, a with the pooled 0.02; means are over 2 seeds.
    errors = [d.standard_error for d in fit.differences]
    assert errors == pytest.approx([np.sqrt((0.03 + 0.02) / 2), np.sqrt((0.03 + 0.03) / 2)])


def test_a_missing_run_is_adjusted_for_its_seed():
    # Seed 1 is 10 higher for all: dropping the arm's easy seed must not look like an effect.
    nan = float("nan")
    table = table_of({"base": [1.0, 11.0], "a": [nan, 12.0], "b": [3.0, 13.0]})
    fit = fit_blocked(table, baseline="base")
    assert [d.value for d in fit.differences] == pytest.approx([1.0, 2.0])


def test_an_arm_without_a_common_seed_is_refused():
    nan = float("nan")
    table = table_of({"base": [1.0, nan], "a": [nan, 2.0]})
    with pytest.raises(ValueError, match="do not share enough seeds"):
        fit_blocked(table, baseline="base")


def test_one_seed_gives_no_interval():
    single = fit_blocked(table_of({"base": [1.0], "a": [1.5]}), baseline="base")
    assert single.df == 0
    assert single.differences[0].low is None


@pytest.mark.parametrize(
    ("base", "arm", "said"),
    [
        ([0.9, 0.9], [0.1, 0.1], EQUAL_SEEDS),
        ([0.1 + 0.2, 0.3], [0.3, 0.3], EQUAL_SEEDS),  # apart by a rounding
        ([0.0, 0.0], [0.0, 0.0], EQUAL_SEEDS),
        ([2.1, 2.3, 2.2], [2.1, 2.3, 2.2], EQUAL_DIFFERENCES),
        ([0.25, 0.5], [0.5, 0.75], EQUAL_DIFFERENCES),
    ],
)
def test_runs_without_noise_give_no_certainty(base, arm, said):
    found = fit_blocked(table_of({"base": base, "a": arm}), baseline="base", margin=0.1)
    one = found.differences[0]
    assert one.value == pytest.approx(arm[0] - base[0])
    assert {one.low, one.high, one.p_simultaneous, one.p_holm, one.p_equivalence} == {None}
    assert (found.df, found.residual_sd, found.no_noise) == (0, None, said)


def test_an_arm_of_equal_seeds_has_no_interval_of_its_own():
    found = fit_blocked(table_of({"base": [0.5, 0.75], "a": [1.0, 1.0]}), baseline="base")
    base, arm = found.means
    assert base.low is not None
    assert (arm.sd, arm.low, arm.high) == (0.0, None, None)
    assert found.differences[0].low is not None


def simulate(rng, *, arms, seeds, effects=None, tail=None):
    noise = rng.standard_t(tail, (arms, seeds)) if tail else rng.normal(size=(arms, seeds))
    values = noise + rng.normal(size=seeds) * 5 + (0 if effects is None else effects[:, None])
    return table_of({f"arm{i}": list(row) for i, row in enumerate(values)})


@pytest.mark.parametrize(("arms", "seeds"), [(4, 2), (4, 5), (8, 3)])
def test_simultaneous_intervals_cover_at_the_nominal_rate(arms, seeds):
    rng = np.random.default_rng(arms * 10 + seeds)
    effects = np.linspace(0, 3, arms)
    trials, covered = 250, 0
    for _ in range(trials):
        fit = fit_blocked(simulate(rng, arms=arms, seeds=seeds, effects=effects), baseline="arm0")
        inside = [d.low <= e <= d.high for d, e in zip(fit.differences, effects[1:], strict=True)]  # type: ignore[operator]
        covered += all(inside)
    low, high = stats.binom.interval(0.999, trials, 0.95)
    assert low <= covered <= high


def test_the_stated_power_is_what_happens():
    rng = np.random.default_rng(3)
    arms, seeds, trials = 4, 3, 400
    effect = resolvable_in_noise(np.column_stack([-np.ones(3), np.eye(3)]), seeds)
    assert effect is not None
    effects = np.array([0, effect[0], 0, 0])
    found = 0
    for _ in range(trials):
        fit = fit_blocked(simulate(rng, arms=arms, seeds=seeds, effects=effects), baseline="arm0")
        found += fit.differences[0].p_simultaneous < 0.05  # type: ignore[operator]
    low, high = stats.binom.interval(0.999, trials, 0.80)
    assert low <= found <= high


def test_resolvable_of_a_plain_t_test_agrees_with_statsmodels():
    from statsmodels.stats.power import TTestPower

    share = (np.arange(20_000) + 0.5) / 20_000
    scales = np.sqrt(stats.chi2.ppf(share, 9) / 9)[None]
    (mine,) = resolvable(scales, float(stats.t.ppf(0.975, 9))) / np.sqrt(10)
    theirs = TTestPower().solve_power(nobs=10, alpha=0.05, power=0.8)
    assert mine == pytest.approx(theirs, rel=1e-4)


def test_permutations_agree_with_enumeration_and_state_their_floor():
    # Two arms, 3 seeds: 8 equally likely sign patterns, and |t| ties with its mirror image.
    check = permutation_check(
        table_of({"base": [0.0, 0.0, 0.0], "a": [1.0, 1.1, 0.9]}), baseline="base"
    )
    assert check.smallest_p == pytest.approx(2 / 8)
    assert check.p["a"] == pytest.approx(2 / 8, abs=0.02)


def test_permutations_hold_their_level_under_heavy_tails():
    rng = np.random.default_rng(11)
    trials = 300
    rejected = 0
    for _ in range(trials):
        table = simulate(rng, arms=4, seeds=4, tail=2)
        p = permutation_check(table, baseline="arm0", shuffles=199).p
        rejected += min(p.values()) <= 0.05
    assert rejected <= stats.binom.ppf(0.999, trials, 0.05)
    assert rejected >= stats.binom.ppf(0.001, trials, 0.05)
