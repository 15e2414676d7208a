"""What is settled before a run: declarations, noise, learning rates, an inert factor."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from arch_search.control import check_control
from arch_search.declarations import late_declarations
from arch_search.errors import UsageError
from arch_search.model import build_model
from arch_search.noise import find_noise
from arch_search.outcomes import rate_resolution
from arch_search.plan_spec import DeclarationSpec
from arch_search.planning import make_plan, make_plans
from arch_search.records import read_experiment
from arch_search.tuning import FIRST_SEED

from .conftest import FIRST, SMALL, plan_for, run_one

SHORT = ("train.tokens=2560", "hold=[]", "evaluate=[{perplexity: {tokens_per_document: 64}}]")
TUNE = "tune={learning_rate: [1e-4, 3e-3, 1e6], per: with}"


def late(plan):
    return {d.what for d in plan.declarations if d.after_results}


def test_what_is_declared_after_results_is_marked_and_nothing_else(root):
    first = plan_for(root, *SHORT, "contrasts={any: {of: {with: m2rnn}, minus: baseline}}")
    assert late(first) == set()
    root.experiment(first.name).write_plan(first)
    run_one(root, first, next(run for run in first.runs if run.arm != "baseline"))
    later = plan_for(
        root, *SHORT, "seeds=2", "primary.smallest_effect=1%",
        "contrasts={any: {of: {with: m2rnn}, minus: baseline}, "
        "other: {of: baseline, minus: m2rnn-1-first}}",
    )  # fmt: skip
    assert late(later) == {"seed 1", "contrast other", "smallest effect"}
    dated = {d.what: d.time for d in later.declarations}
    assert dated["contrast any"] == first.created
    root.experiment(later.name).write_plan(later)
    assert late(root.experiment(later.name).plan()) == late(later)
    (said,) = late_declarations(later)
    assert "seed 1 (on 20" in said
    assert late_declarations(first) == ()


def test_a_second_submission_over_the_runs_of_a_first_is_said_to_be_late_in_a_word(root):
    first = plan_for(root, *SHORT)
    root.experiment(first.name).write_plan(first)
    run_one(root, first, next(run for run in first.runs if run.arm != "baseline"))
    again = plan_for(root, *SHORT, "name=again")
    assert late(again) == {d.what for d in again.declarations}
    (said,) = late_declarations(again)
    assert "already: all that is asked here (on 20" in said
    assert "seed 0" not in said


def test_a_comparison_says_what_was_declared_after_results(planted):
    root = planted()
    experiment = read_experiment("planted", root)
    late = DeclarationSpec(what="seed 4", value="", time="2026-02-01", after_results=True)
    plan = replace(experiment.plan, declarations=(late,))
    control = check_control(replace(experiment, plan=plan), experiment.trained)
    assert any("seed 4 (on 2026-02-01)" in warning for warning in control.warnings)


def test_a_plan_made_again_is_the_plan_in_force(root):
    first = plan_for(root, *SHORT)
    root.experiment(first.name).write_plan(first)
    root.experiment(first.name).write_plan(plan_for(root, *SHORT))
    assert list((root.experiment(first.name).path / "plans").iterdir()) == []


def test_noise_is_measured_on_earlier_experiments_of_the_same_base(planted):
    root = planted(noise=0.01, seeds=5)
    plan = read_experiment("planted", root).plan
    found = find_noise(None, plan.arms, "val/bits_per_byte", "next", root)
    assert found is not None
    assert found.df == 12
    assert found.source == "measured in planted"
    assert 0.5 < found.share / (0.01 / 2.55) < 1.6  # 12 degrees of freedom: 0.57 to 1.44 at 99 %


def test_noise_of_another_base_or_of_the_experiment_itself_is_not_taken(planted):
    root = planted()
    plan = read_experiment("planted", root).plan
    assert find_noise(None, plan.arms, "val/bits_per_byte", "planted", root) is None
    assert find_noise(None, plan.arms, "val/nothing", "next", root) is None
    given = find_noise(0.004, plan.arms, "val/bits_per_byte", "next", root)
    assert given is not None
    assert given.share == 0.004


def test_the_plan_states_what_it_resolves_and_the_seeds_it_would_take(root):
    plan = plan_for(root, *SHORT, "seeds=5", "noise=0.4%", "primary.smallest_effect=0.3%")
    (found,) = plan.resolution
    assert found.contrast == "m2rnn-1-first - baseline"
    assert found.share == pytest.approx(found.in_noise * 0.004)
    assert found.seeds_wanted is not None
    assert found.seeds_wanted > 5
    more = plan_for(root, *SHORT, f"seeds={found.seeds_wanted}", "noise=0.4%")
    assert more.resolution[0].share <= 0.003


@pytest.mark.parametrize(
    ("seeds", "says"),
    [(20, "identity, softplus, slow and 13 more: never against 52 % of the runs."),
     (3, "nothing with 3 seeds, not even never against always.")],
)  # fmt: skip
def test_a_plan_of_solved_or_not_says_which_share_it_tells_from_never(root, seeds, says):
    plan = make_plan(FIRST.parent / "s3_state_tracking.yaml", root, [f"seeds={seeds}"])
    assert plan.resolution == ()
    assert "Holm over 16 contrasts" in rate_resolution(plan)
    assert says in rate_resolution(plan)


def test_a_plan_of_one_arm_that_solves_or_not_compares_nothing(root):
    plan = make_plan(FIRST.parent / "s3_state_tracking.yaml", root, ["~arms", "~contrasts"])
    assert rate_resolution(plan) == "task/solved is yes or no."
    four = make_plan(FIRST.parent / "s5_a5_tracking.yaml", root, ["~contrasts"])
    assert "Holm over 3 arms): a5_gru - baseline, s5 - baseline" in rate_resolution(four)


def tune(root, *overrides):
    return make_plans(FIRST, root, [*SMALL, *SHORT, TUNE, *overrides])


def test_learning_rates_are_tuned_first_with_seeds_apart_and_then_set(root):
    plan, tuning = tune(root)
    assert tuning is not None
    assert {run.spec.init_seed for run in tuning.runs} == {FIRST_SEED}
    assert [arm.name for arm in tuning.arms] == [
        f"{level}-lr={rate}" for level in ("baseline", "m2rnn") for rate in ("0.0001", "0.003",
                                                                             "1e+06")
    ]  # fmt: skip
    assert any("not tuned yet: submit first makes 6 runs" in f.text for f in plan.findings)
    for run in tuning.runs:
        try:
            run_one(root, tuning, run)
        except Exception:
            assert "1e+06" in run.arm, run.arm  # a rate at which training diverges
    plan, left = tune(root)
    assert left is None
    measured = {
        run.arm: (root.run(run.hash).evaluation(tuning.evaluations[0]) or {}).get("metrics", {})
        for run in tuning.runs
    }
    for one in plan.tuned:
        values = {
            rate: measured[f"{one.level}-lr={rate}"].get("val/bits_per_byte", math.inf)
            for rate in ("0.0001", "0.003", "1e+06")
        }
        assert f"{one.learning_rate:g}" == min(values, key=lambda rate: values[rate])
        assert one.means["0.003"] == pytest.approx(values["0.003"])
    rates = {arm.name: arm.train.optimiser.learning_rate for arm in plan.arms}
    assert rates == {"baseline": 3e-3, "m2rnn-1-first": 3e-3}
    assert not any("one learning rate" in f.text for f in plan.findings)
    assert not any(f.level == "warning" and f.subject == "learning rate" for f in plan.findings)


def test_a_best_rate_at_the_edge_is_warned_of(root):
    bracket = "tune={learning_rate: [1e-4, 3e-3], per: with}"
    _, tuning = tune(root, bracket)
    for run in tuning.runs:
        run_one(root, tuning, run)
    plan, _ = tune(root, bracket)
    edge = [f.text for f in plan.findings if "at the edge of the bracket" in f.text]
    assert len(edge) == 2
    assert "a better one may lie above" in edge[0]


@pytest.mark.parametrize(
    "overrides, says",
    [
        (["tune={learning_rate: [1e-3]}"], "at least 2"),
        ([f"seeds=[{FIRST_SEED}]"], "is one that tune uses"),
    ],
)
def test_impossible_tunings_are_refused(root, overrides, says):
    with pytest.raises(UsageError, match=says):
        tune(root, *overrides)


def test_a_salt_redraws_the_replaced_mixers_and_nothing_else(root):
    axes = ("arms.cells=[]", "arms.with=gdn", "arms.count=1", "arms.position=first")
    plan = plan_for(root, *SHORT, *axes, "arms.vary={init_salt: [0, 1]}")
    base, salted = plan.arms
    assert base.also == ({"with": "gdn", "count": 1, "position": "first", "init_salt": 0},)
    assert base.model != salted.model
    left = build_model(base.model, seed=3).state_dict()
    right = build_model(salted.model, seed=3).state_dict()
    differ = {name for name in left if not torch.equal(left[name], right[name])}
    drawn = {name for name in left if name.startswith("layers.0.mixer.") and left[name].std() > 0}
    assert differ == drawn
    assert differ
    assert all(np.isclose(left[n].std(), right[n].std(), rtol=0.5) for n in differ
               if left[n].numel() > 100)  # fmt: skip


def test_a_control_stands_beside_the_factorial(root):
    plan = plan_for(
        root, *SHORT, "arms.controls={aa: {with: gdn, count: 1, position: first, init_salt: 1}}",
        "contrasts={aa: {of: aa, minus: baseline}}",
    )  # fmt: skip
    control = plan.arms[-1]
    assert (control.name, control.is_control, control.factors) == ("aa", True, {"control": "aa"})
    assert control.model.layers[0].init_salt == 1
    assert control.layout == plan.arms[0].layout
