"""Thresholds read off planted grids, and fits that find planted coefficients."""

import numpy as np
import pytest

from arch_search.thresholds import (
    GridPoint,
    Threshold,
    beside_published,
    find_thresholds,
    fit_sentence,
    fit_thresholds,
)
from dashboards.threshold_command import grid_of

PUBLISHED = (0.8e6, 1.6e6, 2.4e6, 4.8e6, 12.9e6, 19.3e6)


def point(size, length, ratio, passkeys=None, seed=0):
    return GridPoint(block="mamba2", state_elements=size, training_length=length, seed=seed,
                     ratio=ratio, passkeys=passkeys or {})  # fmt: skip


def threshold(size, forget, recall=None, seed=0):
    return Threshold(block="mamba2", state_elements=round(size), seed=seed, tried=(1,),
                     forget=forget, recall=recall)  # fmt: skip


def test_thresholds_are_the_first_length_that_holds_and_the_last_context_that_is_recalled():
    grid = [
        point(100, 32, 3.0),
        point(100, 128, 1.3, {128: 1.0, 256: 0.96, 512: 0.5, 1024: 0.2}),
        point(100, 64, 1.9, {64: 1.0, 128: 0.97, 256: 0.3}),
        point(400, 32, 5.0),
        point(400, 64, 2.5),
        point(900, 32, 1.0, {32: 0.9}),
    ]
    small, middle, large = find_thresholds(grid, factor=2.0)
    assert (small.forget, small.recall, small.tried) == (64, 128, (32, 64, 128))
    assert (middle.forget, middle.recall) == (None, None)
    assert (large.forget, large.recall) == (32, 0)  # not even the shortest context
    strict = find_thresholds(grid, factor=1.5)[0]
    assert (strict.forget, strict.recall) == (128, 256)
    assert find_thresholds(grid, factor=2.0, accuracy=0.98)[0].recall == 64


def test_passkeys_that_were_not_asked_are_not_counted_as_missed():
    sizes = (100, 200, 400)
    grid = [point(size, 32, 1.0, {32: 0.1}) for size in sizes] + [point(800, 32, 1.0)]
    missed, *_, unasked = find_thresholds(grid, factor=2.0)
    assert (missed.recall, missed.asked) == (0, True)
    assert (unasked.recall, unasked.asked) == (None, False)
    said = " ".join(grid_of("mamba2", grid, 2.0, 0.95).sentences())
    assert "no recall limit within the grid for 3 of 4 runs" in said
    assert "no passkey evaluation for 1 of 4 runs of a size and seed (state elements 800)" in said
    never = " ".join(grid_of("mamba2", grid[-1:], 2.0, 0.95).sentences())
    assert "recall limit within" not in never
    assert "no passkey evaluation for 1 of 1" in never


def test_fits_find_the_published_coefficients():
    made = [
        threshold(
            n, 1e3 * (5.172 * n / 1e6 - 4.469), 1e3 * (4.756 * (1.365 ** (n / 1e6) - 1) - 0.742)
        )
        for n in PUBLISHED
    ]
    linear = fit_thresholds(made, "forget")[0]
    assert linear.coefficients["slope"].value == pytest.approx(5.172)
    assert linear.coefficients["intercept"].value == pytest.approx(-4.469)
    assert linear.r_squared == pytest.approx(1)
    assert linear.at(np.array([12.9])) == pytest.approx([62.25], abs=0.01)
    _, exponential = fit_thresholds(made, "recall")
    found = {name: c.value for name, c in exponential.coefficients.items()}
    assert np.exp(found["rate"]) == pytest.approx(1.365, rel=1e-4)
    assert found["scale"] == pytest.approx(4.756, rel=1e-3)
    assert found["intercept"] == pytest.approx(-0.742, abs=0.01)
    assert "6 points" in fit_sentence(exponential)


def test_intervals_hold_the_truth_as_often_as_they_say():
    rng, inside = np.random.default_rng(0), 0
    for _ in range(200):
        made = [threshold(n, 1e3 * (5 * n / 1e6 + 3 + rng.normal()), seed=s)
                for n in PUBLISHED for s in range(2)]  # fmt: skip
        slope = fit_thresholds(made, "forget")[0].coefficients["slope"]
        inside += slope.low <= 5 <= slope.high
    assert 180 <= inside <= 199  # 95 % of 200 is 190


def test_a_toy_grid_is_as_well_conditioned_as_the_published_one():
    sizes = [500, 1_000, 2_000, 4_000, 8_000]
    made = [threshold(n, round(20 * (np.exp(n / 3_000) - 1) + 30)) for n in sizes]
    _, exponential = fit_thresholds(made, "forget")
    assert exponential.coefficients["rate"].value == pytest.approx(1e6 / 3_000, rel=0.05)
    assert exponential.r_squared > 0.999
    assert not exponential.undetermined
    assert exponential.coefficients["rate"].low is not None


@pytest.mark.parametrize(
    "sizes, tokens",
    [
        ([500, 2_000, 8_000], [64, 64, 256]),  # a step
        ([500, 2_000, 8_000], [64, 256, 256]),  # bends the other way: a line is nearest
        ([2_000, 4_000, 6_000], [64, 160, 256]),  # a line
    ],
)
def test_an_exponential_that_the_points_do_not_determine_has_no_intervals(sizes, tokens):
    made = [threshold(n, t + more) for n, t in zip(sizes, tokens, strict=True) for more in (0, 32)]
    _, exponential = fit_thresholds(made, "forget")
    assert exponential.undetermined
    assert {c.low for c in exponential.coefficients.values()} == {None}
    assert "do not determine it" in fit_sentence(exponential)


def test_too_few_sizes_are_not_fitted():
    assert fit_thresholds([threshold(1e6, 64)], "forget") == ()
    two = fit_thresholds([threshold(1e6, 64), threshold(2e6, 128), threshold(3e6, None)], "forget")
    assert [fit.form for fit in two] == ["linear"]
    assert two[0].coefficients["slope"].low is None
    assert "no freedom left" in fit_sentence(two[0])


def test_a_threshold_that_is_the_same_everywhere_is_said_to_be_so():
    twelve = [threshold(n, 64) for n in (512, 2_048, 8_192) for _ in range(4)]
    assert "64 tokens at every state size" in fit_sentence(fit_thresholds(twelve, "forget")[0])
    same = [threshold(n, 256, 0) for n in PUBLISHED]
    [line] = fit_thresholds(same, "forget")
    assert line.coefficients["slope"].low is None
    assert "256 tokens at every state size" in fit_sentence(line)
    assert fit_thresholds(same, "recall") == ()  # nothing was recalled: no limit is known


def test_a_fit_says_whether_it_agrees_with_the_published_slope():
    lengths = [round(1e3 * (5.172 * n / 1e6 - 4.469)) for n in PUBLISHED[1:]]
    noise = (20, -30, 10, -10, 10)
    agreeing = [threshold(n, t + e) for n, t, e in zip(PUBLISHED[1:], lengths, noise, strict=True)]
    flat = [threshold(n, 2_000 + e) for n, e in zip(PUBLISHED[1:], noise, strict=True)]
    said = [beside_published(fit_thresholds(each, "forget")[0]) for each in (agreeing, flat)]
    assert "which the interval holds" in said[0]
    assert "which the interval does not hold" in said[1]
    assert "below zero under 0.86 million" in said[0]
