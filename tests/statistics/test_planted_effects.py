"""What intervals and the power statement promise, against effects that were planted.

Noise is what is left between seeds once seeds are blocks; each simulated ablation also gets a shift
for each seed five times as large, which must not matter.
"""

import numpy as np
import pytest
from scipy import stats

from arch_search.statistics.permutation import design_matrix, many_contrasts
from arch_search.statistics.power import resolvable_in_noise
from arch_search.statistics.simultaneous import (
    adjusted_p_values,
    correlation_of,
    critical_value,
    holm,
    planned_resolvable,
)

ABLATIONS = 4_000
SIZES = [(2, 5), (4, 3), (4, 5), (16, 3), (16, 5)]


def noise(kind: str, shape: tuple[int, int, int], rng: np.random.Generator) -> np.ndarray:
    """(ablations, seeds, arms). 'half_x2': half of the arms twice as noisy; 'one_x3': one arm."""
    arms = shape[-1]
    match kind:
        case "normal":
            return rng.normal(size=shape)
        case "t3":
            return rng.standard_t(3, size=shape) / np.sqrt(3)
        case "skew":
            return rng.exponential(size=shape) - 1
        case "half_x2":
            return rng.normal(size=shape) * np.where(np.arange(arms) < arms / 2, 1, 2)
        case _:
            return rng.normal(size=shape) * np.where(np.arange(arms) < arms - 1, 1, 3)


def simulate(arms, seeds, kind="normal", *, effects=0.0, weights=None, seed=0):
    """Estimates and standard errors of the contrasts (contrasts, ablations).

    effects: (arms,) planted.   weights: every arm against the first if None.
    """
    rng = np.random.default_rng([arms, seeds, seed])
    values = noise(kind, (ABLATIONS, seeds, arms), rng) + effects
    values = values + 5 * rng.normal(size=(ABLATIONS, seeds, 1))
    names = [f"arm{i}" for i in range(arms)]
    design = design_matrix(names * seeds, np.repeat(np.arange(seeds), arms).tolist(), names)
    weights = against_baseline(arms) if weights is None else weights
    return many_contrasts(design, values.reshape(ABLATIONS, -1).T, weights)


def share_found(arms, seeds, *, effects, weights, contrast) -> float:
    """How often a contrast is significant, tested together with the others."""
    estimates, errors = simulate(arms, seeds, effects=effects, weights=weights)
    return float((np.abs(estimates / errors)[contrast] > critical(weights, seeds)).mean())


def share_covered(arms, seeds, kind="normal", *, effects=None, seed=0) -> float:
    """How often all intervals against the first arm hold their true value at once."""
    effects = np.zeros(arms) if effects is None else effects
    weights = against_baseline(arms)
    estimates, errors = simulate(arms, seeds, kind, effects=effects, seed=seed)
    missed = np.abs(estimates - (weights @ effects)[:, None]) > critical(weights, seeds) * errors
    return float(1 - missed.any(axis=0).mean())


def against_baseline(arms: int) -> np.ndarray:
    return np.column_stack([-np.ones(arms - 1), np.eye(arms - 1)])


def critical(weights: np.ndarray, seeds: int) -> float:
    df = (weights.shape[1] - 1) * (seeds - 1)
    return critical_value(correlation_of(weights @ weights.T), df)


@pytest.mark.parametrize("size", [0.0, 1.0, 30.0])
@pytest.mark.parametrize(("arms", "seeds"), SIZES)
def test_simultaneous_intervals_cover_whatever_the_effects(arms, seeds, size):
    covered = share_covered(arms, seeds, effects=size * np.linspace(0, 1, arms), seed=int(size))
    low, high = stats.binom.interval(0.999, ABLATIONS, 0.95)
    assert low <= covered * ABLATIONS <= high


@pytest.mark.parametrize(("arms", "seeds"), SIZES)
@pytest.mark.parametrize(
    ("kind", "least"), [("t3", 0.915), ("skew", 0.915), ("half_x2", 0.945), ("one_x3", 0.85)]
)
def test_how_far_other_noise_takes_the_coverage(arms, seeds, kind, least):
    """Heavy tails cost up to 3 points at 16 arms; one arm three times as noisy up to 9.

    The second is why `compare` looks for unequal noise and says what the arm's own seeds say.
    """
    assert least <= share_covered(arms, seeds, kind, effects=np.linspace(0, 3, arms)) <= 0.975


FAMILIES = {
    "baseline": against_baseline(4),
    "single": np.array([[0.5, 0.5, -0.5, -0.5]]),
    "factorial": np.array([[0.5, 0.5, -0.5, -0.5], [0.5, -0.5, 0.5, -0.5], [1, -1, -1, 1.0]]),
    "many": against_baseline(16),
}


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_power_statement_is_what_happens(family, seeds):
    weights = FAMILIES[family]
    stated = resolvable_in_noise(weights, seeds)
    assert stated is not None
    for i, row in enumerate(weights[:3]):
        effects = row * stated[i] / (row @ row)  # gives this contrast its stated size
        found = share_found(weights.shape[1], seeds, effects=effects, weights=weights, contrast=i)
        assert found == pytest.approx(0.80, abs=0.03)


def paired_with_holm(arms: int, seeds: int, size: float) -> float:
    """How often arm-by-arm paired t tests with Holm find one arm's effect among `arms`."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(ABLATIONS, seeds, arms))
    values[:, :, 1] += size
    p = stats.ttest_rel(values[:, :, 1:], values[:, :, :1], axis=1).pvalue
    return float(np.mean([holm(one)[0] <= 0.05 for one in p]))


@pytest.mark.parametrize(("seeds", "about"), [(3, 3.3), (5, 2.5)])
def test_sixteen_arms_resolve_what_was_promised(seeds, about):
    stated = planned_resolvable(arms=16, seeds=seeds, noise=1.0)
    assert stated == pytest.approx(about, abs=0.15)
    effects = np.zeros(16)
    effects[1] = stated
    found = share_found(16, seeds, effects=effects, weights=against_baseline(16), contrast=0)
    assert found == pytest.approx(0.80, abs=0.03)


def test_separate_paired_tests_would_need_five_times_the_effect():
    assert paired_with_holm(16, 3, 18.0) == pytest.approx(0.80, abs=0.05)
    assert paired_with_holm(16, 3, 3.3) < 0.1


def test_holm_agrees_with_statsmodels():
    from statsmodels.stats.multitest import multipletests

    p = np.random.default_rng(0).uniform(0, 0.1, size=12)
    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1])
    assert holm(np.array([0.9, 0.8])) == pytest.approx([1, 1])


def test_one_step_p_values_agree_with_the_interval():
    weights, seeds = against_baseline(4), 3
    estimates, errors = simulate(4, seeds)
    t = (estimates / errors)[:, :200]
    limit, correlation = critical(weights, seeds), correlation_of(weights @ weights.T)
    for one in t.T:
        p = adjusted_p_values(one, correlation, 6)
        assert ((p < 0.05) == (np.abs(one) > limit)).all()
