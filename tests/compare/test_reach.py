"""Declared contrasts, factors, yes-or-no outcomes, documents and budgets, on planted records."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from arch_search.budgets import Curve, equal_flops, schedule_sentence, token_multipliers
from arch_search.compare import compare, comparison_table, linked_fit, metric_table
from arch_search.documents import document_differences
from arch_search.factorial import factor_tests, interaction_means
from arch_search.noise_findings import noise_sentences
from arch_search.plan_spec import ContrastSpec
from arch_search.records import read_experiment
from arch_search.spec import ScheduleSpec
from arch_search.statistics.binary import fisher, rate_differences, rates, told_from_never
from arch_search.statistics.linear import Fit, estimate, fit_arms
from arch_search.statistics.ratio import bootstrap_ratio
from arch_search.statistics.unequal import noisiest_arm, paired_interval

PLACE = ContrastSpec(name="place", family="position", text="last minus first",
                     weights={"m2rnn-1-last": 1.0, "m2rnn-1-first": -1.0})  # fmt: skip
PLACEBO = ContrastSpec(
    name="any",
    family="placebo",
    text="any minus none",
    weights={"m2rnn-1-last": 0.5, "m2rnn-1-first": 0.5, "baseline": -1.0},
)


def declare(root, *contrasts, **changes):
    folder = root.experiment("planted")
    folder.write_plan(replace(folder.plan(), contrasts=contrasts, **changes))
    return root


def planted_fit(root) -> Fit:
    experiment = read_experiment("planted", root)
    fit = linked_fit(experiment, metric_table(experiment, "val/bits_per_byte"))
    assert fit is not None
    assert min(fit.variances) >= fit.residual_sd**2 * (1 - 1e-9)
    return fit


def test_declared_contrasts_are_one_family_and_cover(planted):
    root = declare(planted(), PLACE, PLACEBO)
    comparison = compare("planted", root=root)
    place, any_ = comparison.contrasts
    assert place.low <= 0.06 <= place.high
    assert any_.low <= -0.03 <= any_.high
    assert place.verdict == "higher"
    assert place.p_holm < 0.05
    assert place.permutation_p < 0.05
    # half-widths are in the ratio of the standard errors, each arm with its own noise or the pooled
    noise = dict(zip(planted_fit(root).arms, planted_fit(root).variances, strict=True))
    first, last = noise["m2rnn-1-first"], noise["m2rnn-1-last"]
    ratio = math.sqrt((first + last) / ((first + last) / 4 + noise["baseline"]))
    assert (place.high - place.low) / (any_.high - any_.low) == pytest.approx(ratio)
    table = comparison_table(comparison)
    assert list(table["kind"]) == ["arm"] * 4 + ["contrast"] * 2
    assert comparison.sentences[0].startswith("place (last minus first): higher, +0.0")


def test_fewer_contrasts_give_narrower_intervals(planted):
    root = planted()
    alone = compare("planted", root=declare(root, PLACE)).contrasts[0]
    both = compare("planted", root=declare(root, PLACE, PLACEBO)).contrasts[0]
    fit = planted_fit(root)
    noise = dict(zip(fit.arms, fit.variances, strict=True))
    error = math.sqrt((noise["m2rnn-1-first"] + noise["m2rnn-1-last"]) / 5)
    # errors are on average too large under equal noise, which the critical value makes good
    assert 1.9 < (alone.high - alone.value) / error < stats.t.ppf(0.975, 12)
    assert both.high - both.low > alone.high - alone.low


def test_a_contrast_without_its_runs_is_said_and_not_guessed(planted):
    gone = frozenset({("m2rnn-1-last", seed) for seed in range(5)})
    comparison = compare("planted", root=declare(planted(pending=gone), PLACE))
    assert comparison.contrasts[0].verdict == "not compared: no linked run of m2rnn-1-last"
    assert comparison.contrasts[0].value is None


REST = "name=planted-rest 'arms.drop=[m2rnn-1-last]'"


def failing(*arms, seeds=range(5)):
    return frozenset(itertools.product(arms, seeds))


def held_up(root):
    return [s for s in compare("planted", root=root).sentences if "arms.drop" in s]


def test_arms_of_which_every_run_failed_are_named_with_the_way_to_compare_the_rest(planted):
    (said,) = held_up(declare(planted(failed=failing("m2rnn-1-last")), PLACEBO))
    assert said.startswith("Not compared since every run of an arm failed: any. Submitted without")
    assert f"from the same runs: {REST}. That choice is then made after the fact." in said


def test_arms_that_may_still_finish_or_have_left_nothing_else_are_not_to_be_dropped(
    planted, tmp_path
):
    last = "m2rnn-1-last"
    for i, (changes, asked) in enumerate(
        [
            ({"pending": failing(last)}, PLACEBO),
            ({"failed": failing(last, seeds=range(4)), "pending": {(last, 4)}}, PLACEBO),
            ({"failed": failing(last, seeds=range(4))}, PLACEBO),  # the fifth is compared
            ({"failed": failing(last)}, PLACE),  # which asks for this arm alone
            ({"failed": failing("m2rnn-2-spread")}, PLACEBO),  # which does not ask for it
            ({"failed": failing(last, "baseline")}, PLACEBO),
            ({"failed": failing(last), "pending": failing("m2rnn-1-first", "m2rnn-2-spread")},
             PLACEBO),
        ]
    ):  # fmt: skip
        assert held_up(declare(planted(root=tmp_path / str(i), **changes), asked)) == [], i


def test_equivalence_is_two_one_sided_tests():
    table = pd.DataFrame(
        [(a, s, v) for a, vs in {"b": [1.0, 2.0, 3.1], "a": [1.1, 2.0, 3.0]}.items()
         for s, v in enumerate(vs)], columns=["arm", "seed", "value"])  # fmt: skip
    (found,) = estimate(fit_arms(table, first="b"), {"a": {"a": 1, "b": -1}}, margin=0.3).estimates
    paired = np.array([0.1, 0.0, -0.1])
    upper = stats.ttest_1samp(paired - 0.3, 0, alternative="less").pvalue
    lower = stats.ttest_1samp(paired + 0.3, 0, alternative="greater").pvalue
    assert found.p_equivalence == pytest.approx(max(upper, lower), rel=1e-3)


def factorial_arms(planted):
    """2 counts x 2 positions with a planted interaction, as arms of the planted experiment."""
    experiment = read_experiment("planted", planted())
    base, one = experiment.plan.arms[:2]
    arms = [replace(one, name=f"{c}{p}", factors={"count": c, "position": p})
            for c in (1, 2) for p in ("first", "last")]  # fmt: skip
    return [base, *arms]


def factorial_table(rng, interaction=0.0, seeds=4):
    cells = {"baseline": 0.0, "1first": 1.0, "1last": 2.0, "2first": 1.0, "2last": 2 + interaction}
    rows = [(a, s, v + 3 * s + 0.1 * rng.normal()) for s in range(seeds) for a, v in cells.items()]
    return pd.DataFrame(rows, columns=["arm", "seed", "value"])


def test_main_effects_and_interactions_agree_with_analysis_of_variance(planted):
    import statsmodels.api as sm
    import statsmodels.formula.api as smf

    arms = factorial_arms(planted)
    table = factorial_table(np.random.default_rng(0), interaction=0.2)
    without = table.loc[table["arm"] != "baseline"].assign(
        count=lambda t: t["arm"].str[0], position=lambda t: t["arm"].str[1:]
    )
    tests = factor_tests(arms, fit_arms(without[["arm", "seed", "value"]], first="1first"))
    anova = sm.stats.anova_lm(
        smf.ols("value ~ C(count) * C(position) + C(seed)", data=without).fit(), typ=2
    )
    for test, row in zip(tests, ("C(count)", "C(position)", "C(count):C(position)"), strict=True):
        assert test.f == pytest.approx(anova.loc[row, "F"])
        assert test.p == pytest.approx(anova.loc[row, "PR(>F)"])


def test_an_interaction_is_found_where_it_is_and_nowhere_else(planted):
    arms, rng = factorial_arms(planted), np.random.default_rng(1)
    there = {t.name: t for t in factor_tests(arms, fit_arms(
        factorial_table(rng, interaction=1.0), first="baseline"))}  # fmt: skip
    assert there["count x position"].p_holm < 0.001
    assert there["position"].spread == pytest.approx(1.5, abs=0.2)
    false = 0
    for _ in range(200):
        fit = fit_arms(factorial_table(rng), first="baseline")
        false += next(t for t in factor_tests(arms, fit) if t.name == "count x position").p < 0.05
    assert false <= stats.binom.ppf(0.999, 200, 0.05)
    means = interaction_means(arms, fit, ("count", "position"))
    assert len(means) == 4
    last = means.query("position == 'last' and count == '1'").iloc[0]
    assert last["low"] < 2 < last["high"]


def test_rates_are_exact_and_separation_is_said():
    base, arm, never = rates({"b": (2, 5), "a": (4, 5), "n": (0, 5)}, baseline="b")
    assert (base.low, base.high) == pytest.approx((0.0527, 0.8534), abs=1e-4)  # tables of C. and P.
    assert arm.odds_ratio == pytest.approx(4 * 3 / 2)
    assert math.log(arm.odds_high / arm.odds_low) / 2 == pytest.approx(
        1.96 * math.sqrt(1 / 4 + 1 + 1 / 2 + 1 / 3), rel=1e-3
    )
    assert never.separated
    assert never.odds_ratio is None
    assert never.p_holm == pytest.approx(min(1, 2 * stats.fisher_exact([[0, 5], [2, 3]])[1]))
    assert (never.low, never.high) == (0.0, pytest.approx(1 - 0.025 ** (1 / 5)))


def test_differences_of_rates_have_newcombes_intervals_and_fishers_test():
    """Newcombe (1998, Statistics in Medicine 17), tables II and V: method 10."""
    found = rate_differences({"a": ((56, 70), (48, 80)), "f": ((10, 10), (0, 10))})
    assert (found[0].value, found[0].low, found[0].high) == pytest.approx(
        (0.2, 0.0524, 0.3339), abs=1e-4
    )
    assert (found[1].low, found[1].high) == pytest.approx((0.6075, 1.0), abs=1e-4)
    p = [stats.fisher_exact([[56, 14], [48, 32]])[1], stats.fisher_exact([[10, 0], [0, 10]])[1]]
    assert [one.p_holm for one in found] == pytest.approx([p[0], 2 * p[1]])


@pytest.mark.parametrize(("n", "tests"), [(20, 1), (20, 16), (10, 22)])
def test_what_is_told_from_never_is_found_four_times_in_five(n, tests):
    least = told_from_never(n, n, tests=tests)
    found = [k for k in range(n + 1) if tests * fisher((k, n), (0, n)) <= 0.05]
    assert stats.binom.pmf(found, n, least).sum() == pytest.approx(0.8)


def test_too_few_seeds_tell_nothing_from_never():
    assert told_from_never(3, 3, tests=1) is None
    assert told_from_never(5, 5, tests=22) is None
    assert told_from_never(5, 5, tests=1) is not None


def test_exact_intervals_cover_at_least_nominally():
    rng = np.random.default_rng(0)
    for truth in (0.1, 0.5, 0.9):
        inside = 0
        for hits in rng.binomial(5, truth, size=400):
            (rate,) = rates({"a": (int(hits), 5)}, baseline=None)
            inside += rate.low <= truth <= rate.high
        assert inside >= stats.binom.ppf(0.001, 400, 0.95)


def solved(root, answers, metric="s3/solved"):
    """Write a metric into each result: answers[arm] lists one for each seed."""
    for run in read_experiment("planted", root).runs:
        path = run.folder.path / "result.json"
        if path.exists():
            result = json.loads(path.read_text())
            result["metrics"][metric] = float(answers[run.arm.name][run.planned.seed])
            path.write_text(json.dumps(result))
    return root


def test_solved_or_not_gets_rates_and_a_failure_counts_as_not(planted):
    answers = {"baseline": [0, 0, 1, 0, 0], "m2rnn-1-first": [1, 1, 1, 1, 1],
               "m2rnn-1-last": [1, 0, 1, 1, 0], "m2rnn-2-spread": [1, 1, 1, 1, 1]}  # fmt: skip
    root = solved(planted(failed=frozenset({("m2rnn-2-spread", 4)})), answers)
    comparison = compare("planted", metric="s3/solved", root=root)
    found = {rate.arm: (rate.successes, rate.n) for rate in comparison.rates}
    assert found == {"baseline": (1, 5), "m2rnn-1-first": (5, 5), "m2rnn-1-last": (3, 5),
                     "m2rnn-2-spread": (4, 5)}  # fmt: skip
    assert comparison.model is None
    assert any("No odds ratio for m2rnn-1-first" in s for s in comparison.sentences)
    (spread,) = [f for f in comparison.failures if f.arm == "m2rnn-2-spread"]
    assert (spread.successes, spread.n) == (1, 5)


def test_declared_contrasts_of_solved_or_not_are_tested_exactly(planted):
    answers = {"baseline": [0, 0, 0, 0, 0], "m2rnn-1-first": [1, 1, 1, 1, 1],
               "m2rnn-1-last": [1, 0, 1, 1, 0], "m2rnn-2-spread": [1, 1, 1, 1, 1]}  # fmt: skip
    root = solved(planted(failed=frozenset({("m2rnn-2-spread", 4)})), answers)
    asked = {"one": {"m2rnn-1-first": 1.0, "baseline": -1.0},
             "some": {"m2rnn-1-last": 0.5, "m2rnn-2-spread": 0.5, "baseline": -1.0},
             "trend": {"m2rnn-1-first": 1.0, "m2rnn-1-last": -2.0, "baseline": 1.0}}  # fmt: skip
    given = [ContrastSpec(name=name, family=name, text="", weights=w) for name, w in asked.items()]
    comparison = compare("planted", metric="s3/solved", root=declare(root, *given))
    found = {one.name: (one.of, one.minus) for one in comparison.rate_contrasts}
    assert found == {"one": ((5, 5), (0, 5)), "some": ((7, 10), (0, 5))}
    assert any(said.startswith("Not tested: trend;") for said in comparison.sentences)
    one = comparison.rate_contrasts[0]
    assert one.p_holm == pytest.approx(2 * fisher((5, 5), (0, 5)))


@pytest.mark.parametrize(
    ("metric", "asked"),
    [("s3/solved", True), ("collapse/found", True), ("s3/solved items=50", True),
     ("task/sequence_accuracy", False), ("task/unsolved", False)],
)  # fmt: skip
def test_yes_or_no_is_what_a_metric_is_and_not_what_it_happened_to_be(planted, metric, asked):
    answers = {arm: [0, 1, 1, 0, 1] for arm in ("baseline", "m2rnn-1-first", "m2rnn-1-last")}
    root = solved(planted(), {**answers, "m2rnn-2-spread": [1, 1, 0, 1, 1]}, metric)
    comparison = compare("planted", metric=metric, root=root)
    assert (bool(comparison.rates), comparison.model is None) == (asked, asked)


def test_ratio_and_its_bootstrap_interval():
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(300):
        sizes = rng.integers(1_000, 30_000, size=60).astype(float)
        rows = (sizes * (-0.02 + 0.05 * rng.normal(size=60)))[None]
        (found,) = bootstrap_ratio(rows, sizes, resamples=400, seed=trial)
        assert found.value == pytest.approx(rows.sum() / sizes.sum())
        covered += found.low <= -0.02 <= found.high
    assert stats.binom.ppf(0.001, 300, 0.92) <= covered <= stats.binom.ppf(0.999, 300, 0.95)


def test_documents_are_paired_and_weighted_by_their_bytes(planted):
    experiment = read_experiment("planted", planted())
    found = {one.arm: one for one in document_differences(experiment)}
    comparison = compare("planted", root=experiment.folder.path.parent.parent)
    for outcome in comparison.arms[1:]:
        assert found[outcome.arm].value == pytest.approx(outcome.difference)
        assert found[outcome.arm].documents == 3
        assert found[outcome.arm].seeds == 5


def test_curves_are_read_between_points():
    curve = Curve(tokens=np.array([1.0, 10.0, 100.0]), values=np.array([3.0, 2.0, 1.0]))
    assert curve.read_at(math.sqrt(10)) == pytest.approx(2.5)
    assert math.isnan(curve.read_at(101))
    assert curve.reached_at(1.5) == pytest.approx(10**1.5)
    assert math.isnan(curve.reached_at(0.5))
    bumpy = Curve(tokens=np.array([1.0, 2.0, 4.0, 8.0]), values=np.array([3.0, 1.0, 2.0, 1.5]))
    assert bumpy.reached_at(1.2) == pytest.approx(2 ** (1.8 / 2))


def test_multipliers_favour_the_arm_that_is_ahead(planted):
    found = {m.arm: m for m in token_multipliers(read_experiment("planted", planted()))}
    assert found["m2rnn-2-spread"].low > 1
    assert found["m2rnn-2-spread"].value > found["m2rnn-1-first"].value > 1
    assert found["m2rnn-1-last"].low < 1 < found["m2rnn-1-last"].high
    assert "not a shorter run" in schedule_sentence([ScheduleSpec()])
    assert "is a shorter run" in schedule_sentence([ScheduleSpec(name="constant")])


def record_speeds(root, speeds, **changes):
    """What the throughput lane leaves, in the form that its documentation states."""
    arms = {
        name: {"tokens_per_second": v, "low": 0.99 * v, "high": 1.01 * v, "device": "GPU"}
        for name, v in speeds.items()
    }
    path = root.path / "throughput" / "planted.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"arms": arms, **changes}))


SPEEDS = {"baseline": 1000.0, "m2rnn-1-first": 500.0, "m2rnn-1-last": 1000.0,
          "m2rnn-2-spread": 1000.0}  # fmt: skip


def test_equal_seconds_changes_the_finding_for_an_arm_that_is_slow(planted):
    root = planted()
    before = compare("planted", root=root)
    assert before.readings == ()
    assert "no speeds of these arms were measured" in before.no_seconds
    record_speeds(root, SPEEDS)
    after = compare("planted", root=root)
    (reading,) = after.readings
    assert reading.unit == "seconds"
    assert reading.budget == pytest.approx(240 * 1024 / 1000)
    assert reading.shares == pytest.approx({"baseline": 1, "m2rnn-1-first": 0.5,
                                            "m2rnn-1-last": 1, "m2rnn-2-spread": 1})  # fmt: skip
    assert after.arms[1].verdict == "better"  # at equal tokens, which stay the base
    (said,) = [s for s in after.sentences if s.startswith("At equal seconds")]
    assert "m2rnn-1-first is worse" in said
    assert said.endswith("read at 50 % of its run), at equal tokens better.")
    assert "GPU; each speed known to ±1 %" in reading.source


def test_speeds_that_are_not_told_apart_change_nothing(planted):
    root = planted()
    record_speeds(root, {**SPEEDS, "m2rnn-1-first": 995.0})
    comparison = compare("planted", root=root)
    assert comparison.readings == ()
    assert comparison.no_seconds == (
        "speeds are known to ±1 % (GPU), and arms differ by no more than that"
    )


def test_speeds_go_by_the_ratio_of_arms_that_took_turns(planted):
    root = planted()
    record_speeds(root, SPEEDS, baseline="baseline")
    path = root.path / "throughput" / "planted.json"
    record = json.loads(path.read_text())
    for name, row in record["arms"].items():
        ratio = 0.8 if name == "m2rnn-1-last" else 1.0
        row |= {"ratio": ratio, "ratio_low": 0.99 * ratio, "ratio_high": 1.01 * ratio}
    path.write_text(json.dumps(record))
    (reading,) = compare("planted", root=root).readings
    assert reading.shares == pytest.approx({"baseline": 1, "m2rnn-1-first": 1,
                                            "m2rnn-1-last": 0.8, "m2rnn-2-spread": 1})  # fmt: skip


@pytest.mark.parametrize(
    ("speeds", "changes", "said"),
    [(SPEEDS, {"rankable": False}, "another process used the device"),
     ({"baseline": 1000.0}, {}, "no speed of m2rnn-1-first, m2rnn-1-last, m2rnn-2-spread")],
)  # fmt: skip
def test_speeds_that_cannot_be_ranked_are_not_read(planted, speeds, changes, said):
    root = planted()
    record_speeds(root, speeds, **changes)
    comparison = compare("planted", root=root)
    assert comparison.readings == ()
    assert said in comparison.no_seconds


def test_speeds_of_other_models_are_not_read(planted):
    root = planted()
    record_speeds(root, SPEEDS)
    path = root.path / "throughput" / "planted.json"
    record = json.loads(path.read_text())
    record["arms"]["m2rnn-1-last"]["layout"] = "gdn*8"
    path.write_text(json.dumps(record))
    assert "of other models (m2rnn-1-last)" in compare("planted", root=root).no_seconds


def test_equal_flops_reads_the_dearer_arm_earlier(planted):
    equal = planted()
    assert equal_flops(read_experiment("planted", equal)) is None

    def dearer(arm):
        factor = 2.0 if arm.name == "m2rnn-1-last" else 1.0
        flops = arm.counts["forward_flops_per_token"] * factor
        return replace(arm, counts={**arm.counts, "forward_flops_per_token": flops})

    root = planted(root=equal.path.parent / "dearer", change_arm=dearer)
    reading = equal_flops(read_experiment("planted", root))
    assert reading is not None
    assert reading.shares == pytest.approx({"baseline": 1, "m2rnn-1-first": 1,
                                            "m2rnn-1-last": 0.5, "m2rnn-2-spread": 1})  # fmt: skip
    last = next(d for d in reading.model.differences if d.name == "m2rnn-1-last")
    # half of 240 steps: 2.4 exp(-120 / 45) above the end's 2.4 exp(-240 / 45)
    assert last.value == pytest.approx(2.4 * (math.exp(-120 / 45) - math.exp(-240 / 45)), abs=0.02)
    comparison = compare("planted", root=root)
    assert comparison.readings == (reading,)
    (said,) = [s for s in comparison.sentences if s.startswith("At equal FLOPs")]
    assert "m2rnn-1-last is worse" in said
    assert said.endswith("at equal tokens not told from the baseline.")


def test_unequal_noise_is_found_and_the_own_seeds_speak():
    rng = np.random.default_rng(0)
    rows = [(f"arm{a}", s, rng.normal() * (6 if a == 3 else 1)) for a in range(4) for s in range(6)]
    table = pd.DataFrame(rows, columns=["arm", "seed", "value"])
    found = noisiest_arm(fit_arms(table, first="arm0"))
    assert found is not None
    assert (found.arm, found.p < 0.01) == ("arm3", True)
    low, high = paired_interval(table, "arm3", "arm0", comparisons=1) or (0, 0)
    wide = table.pivot(index="seed", columns="arm", values="value")
    theirs = stats.ttest_rel(wide["arm3"], wide["arm0"]).confidence_interval()
    assert (low, high) == pytest.approx((theirs.low, theirs.high))
    (said,) = noise_sentences(found, table, "arm0", 1)
    assert "arm3 varies" in said
    assert said.endswith("they are compared from the same runs.")
    (of_baseline,) = noise_sentences(found, table, "arm3", 1)
    assert "same runs" not in of_baseline  # what all are compared with cannot be left out


def test_equal_noise_is_rarely_called_unequal():
    rng = np.random.default_rng(1)
    called = 0
    for _ in range(200):
        rows = [(f"arm{a}", s, rng.normal()) for a in range(4) for s in range(4)]
        table = pd.DataFrame(rows, columns=["arm", "seed", "value"])
        found = noisiest_arm(fit_arms(table, first="arm0"))
        called += found is not None and found.p < 0.05
    assert stats.binom.ppf(0.001, 200, 0.05) <= called <= stats.binom.ppf(0.999, 200, 0.05)
