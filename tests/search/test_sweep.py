"""What a sweep does with its trials, run here on scores that are written instead of trained."""

import math

import optuna
import pytest
from scores import quality

from arch_search.errors import UsageError
from arch_search.search.outcome import front, rank_agreement, second_looks, tokens_in_full
from arch_search.search.study import Published, journal_file
from arch_search.search.sweep import Sweep
from arch_search.search.trials import Ledger, ledger_path
from arch_search.sources import modules_of
from blocks.registry import block_class

from .conftest import Stub, story, submitted


def study_of(root, plan):
    folder = root.experiment(plan.name)
    published = Published(plan.sweep, folder, plan.sweep_version, root.identity)
    return published._study


def test_a_pruned_trial_is_pruned_at_its_rung_and_never_passes_as_a_full_one(root):
    plan = submitted(root, trials=20, immune=0)
    sweep = Stub(root, plan).drive()
    trials = sweep.ledger.trials
    pruned = [t for t in trials if t.state == "PRUNED"]
    complete = [t for t in trials if t.state == "COMPLETE"]
    assert len(trials) == 20
    assert len(pruned) + len(complete) == 20
    assert 1 <= len(complete) <= 8
    for trial in pruned:
        assert trial.reason.startswith(f"rung {trial.rung} ")
        assert set(trial.outcomes) == set(range(trial.rung + 1))
        assert root.run(trial.run(plan.sweep, 2).hash).result() is None
    assert {t.number for t in front(plan.sweep, trials)} <= {t.number for t in complete}
    stored = {t.user_attrs["trial"]: t for t in study_of(root, plan).trials}
    assert {n: t.state.name for n, t in stored.items()} == {t.number: t.state for t in trials}
    for trial in pruned:
        assert stored[trial.number].values is None or len(stored[trial.number].intermediate_values)
        tokens = [trial.run(plan.sweep, r).spec.train.tokens for r in range(trial.rung + 1)]
        assert sorted(stored[trial.number].intermediate_values) == tokens


def test_a_tenth_is_never_pruned_whatever_it_scores(root):
    plan = submitted(root, trials=20, immune="10%")

    def worst_if_immune(run):
        spared = plan.sweep.is_immune(int(run.arm[1:5]))
        return 9.0 if spared else quality(run)

    sweep = Stub(root, plan, score=worst_if_immune).drive()
    immune = [t for t in sweep.ledger.trials if t.immune]
    assert [t.number for t in immune] == [9, 19]
    assert {t.state for t in immune} == {"COMPLETE"}
    agreement = rank_agreement(plan.sweep, sweep.ledger.trials)
    assert {one.n_immune for one in agreement} == {2}


def test_nan_is_a_failure_that_everyone_is_told_of(root):
    plan = submitted(root, trials=9, immune=0)
    bad = {"t0003", "t0005"}
    sweep = Stub(root, plan, lambda r: math.nan if r.arm[:5] in bad else quality(r)).drive()
    failed = [t for t in sweep.ledger.trials if t.state == "FAIL"]
    assert [t.name for t in failed] == sorted(bad)
    assert all("not finite at step 7" in t.reason for t in failed)
    states = [t.state.name for t in study_of(root, plan).trials]
    assert states.count("FAIL") == 2
    assert "RUNNING" not in states
    assert len(states) == 9


@pytest.mark.parametrize("sampler", ["tpe", "nsgaii", "random", "grid", "QMCSampler"])
def test_several_objectives_with_pruning_and_every_sampler(root, sampler):
    objectives = {"val/bits_per_byte": "minimize", "count/state_elements": "minimize"}
    plan = submitted(root, trials=16, objectives=objectives, sampler=sampler)
    sweep = Stub(root, plan, room=3).drive()
    trials = sweep.ledger.trials
    assert len({t.content for t in trials}) == len(trials) == 16
    assert any(t.state == "PRUNED" for t in trials)
    best = front(plan.sweep, trials)
    values = [(t.outcomes[2].metrics["val/bits_per_byte"], t.arm.counts["state_elements"])
              for t in best]  # fmt: skip
    assert values == sorted(values)
    assert [v for _, v in values] == sorted((v for _, v in values), reverse=True)
    stored = study_of(root, plan)
    assert {t.number for t in stored.best_trials} == {t.number for t in best}


def test_n_distinct_layouts_or_exhausted(root):
    layout = {"slots": ["gdn", "attn"], "depth": 3}
    plan = submitted(root, trials=50, space={"layout": layout}, sampler="tpe")
    sweep = Stub(root, plan, room=2).drive()
    trials = sweep.ledger.trials
    assert len({t.arm.layout for t in trials}) == len(trials) == 8
    assert sweep.ledger.end == "the space is exhausted: 8 distinct layouts within its limits"


def test_two_ways_to_one_layout_are_one_trial(root):
    layout = {"counts": {"m2rnn": [0, 1, 3]}, "fill": "gdn", "depth": 3,
              "positions": ["first", "last", "spread"]}  # fmt: skip
    plan = submitted(root, trials=30, space={"layout": layout}, rungs=[1])
    sweep = Stub(root, plan).drive()
    layouts = {t.arm.layout for t in sweep.ledger.trials}
    assert layouts == {"gdn*3", "m2rnn gdn*2", "gdn*2 m2rnn", "gdn m2rnn gdn", "m2rnn*3"}
    assert len(sweep.ledger.trials) == 5


def test_a_known_result_is_answered_from_the_record(root):
    plan = submitted(root, trials=8, again={"seeds": 2, "members": 1})
    first = Stub(root, plan)
    found = first.drive()
    root.experiment(plan.name).path.rename(root.path / "gone")
    root.experiment(plan.name).write_plan(plan)
    second = Stub(root, plan)
    assert story(second.drive().ledger.trials) == story(found.ledger.trials)
    assert len(first.done) > 8
    assert second.done == []


@pytest.mark.parametrize(
    "sampler",
    [
        {"name": "tpe", "options": {"n_startup_trials": 4}},
        {"name": "random"},
        {"name": "nsgaii", "options": {"population_size": 4}},
    ],
    ids=lambda sampler: sampler["name"],
)
def test_left_anywhere_a_sweep_goes_on_as_if_it_had_not_been(root, tmp_path, sampler):
    from arch_search.storage import Root

    calm_root = Root(tmp_path / "calm").make()
    (calm_root.path / "data").symlink_to((root.path / "data").resolve())
    changes = {"trials": 16, "sampler": sampler, "again": {"seeds": 2, "members": 2}}
    calm = story(Stub(calm_root, submitted(calm_root, **changes)).drive().ledger.trials)
    plan = submitted(root, **changes)
    rough = Stub(root, plan)
    total = 0
    while total < 200:
        total += 1
        rough.drive(stop_after=len(rough.done) + 2)
        path = ledger_path(root.experiment("s").path, plan.sweep_version)
        if Ledger(path).closed_for:
            break
        path.write_bytes(path.read_bytes() + b'{"kind": "tri')  # a kill amid a write
    assert total > 8
    assert story(Ledger(path).trials) == calm
    assert len(set(rough.done)) == len(rough.done)
    assert all(t.state.is_finished() for t in study_of(root, plan).trials)
    assert len(study_of(root, plan).trials) == 16


def test_a_torn_journal_is_filled_again(root):
    plan = submitted(root, trials=6)
    Stub(root, plan).drive(stop_after=4)
    journal = journal_file(root.experiment("s"), plan.sweep_version)
    with open(journal, "ab") as file:
        file.write(b'{"op_code": 4, "wor')
    sweep = Stub(root, plan).drive()
    assert sweep.telling.published.behind == ""
    states = [t.state.name for t in study_of(root, plan).trials]
    assert len(states) == 6
    assert "RUNNING" not in states


def test_enqueued_layouts_come_first_and_more_trials_extend_a_sweep(root):
    given = [{"pattern": "attn*4"}, {"pattern": "gdn attn gdn attn"}]
    plan = submitted(root, trials=5, enqueue=given)
    first = Stub(root, plan).drive().ledger.trials
    assert [t.arm.layout for t in first[:2]] == ["attn*4", "(gdn attn)*2"]
    assert [t.origin for t in first[:3]] == ["enqueue", "enqueue", "sampler"]
    longer = submitted(root, trials=9, enqueue=given)
    assert longer.sweep_version == plan.sweep_version
    more = Stub(root, longer).drive().ledger.trials
    assert len(more) == 9
    assert story(more)[:5] == story(first)


def test_a_change_of_the_space_is_a_new_version(root):
    one = submitted(root, trials=5)
    wider = {"layout": {"slots": ["gdn", "m2rnn", "attn", "gru"], "depth": 4}}
    other = submitted(root, trials=5, space=wider)
    assert one.sweep_version != other.sweep_version
    Stub(root, other).drive()
    assert len(study_of(root, other).trials) == 5


def test_limits_reject_before_training_and_mark_after(root):
    limits = {"count/state_elements": "<= 3K", "val/bits_per_byte": "<= 3.0"}
    space = {"layout": {"slots": ["gdn", "attn"], "depth": 4}}
    plan = submitted(root, trials=30, limits=limits, space=space, rungs=[1])
    stub = Stub(root, plan)
    trials = stub.drive().ledger.trials
    assert 0 < len(trials) < 16
    assert all(t.arm.counts["state_elements"] <= 3000 for t in trials)
    assert len(stub.done) == len(trials)
    kept = {t.number for t in front(plan.sweep, trials)}
    outside = [t for t in trials if t.outcomes[0].metrics["val/bits_per_byte"] > 3]
    assert not kept & {t.number for t in outside}
    stored = {t.user_attrs["trial"]: t for t in study_of(root, plan).trials}
    for trial in outside:
        assert stored[trial.number].system_attrs["constraints:val/bits_per_byte"] > 0


def test_a_hold_works_inside_a_sweep(root):
    from arch_search.experiment import HoldFile

    from .conftest import BASE, merged, plan_of

    content = merged(BASE, {"hold": {"parameters": "1%", "by": "mlp.width"}})
    plan = plan_of(root, content)
    root.experiment("s").write_plan(plan)
    trials = Stub(root, plan).drive().ledger.trials
    target = plan.arms[0].counts["parameters"]
    assert HoldFile is not None
    assert len({t.arm.counts["mixer_parameters"] for t in trials}) > 3
    assert all(abs(t.arm.counts["parameters"] / target - 1) <= 0.01 for t in trials)


def test_options_are_drawn_where_their_block_stands_and_numbers_from_ranges(root):
    space = {
        "layout": {"pattern": "x*2 attn", "where": {"x": ["gdn", "m2rnn"]}},
        "options": {"m2rnn": {"key_dim": [4, 8], "gate": ["constant", "sigmoid"]}},
        "width": [16, 32],
        "learning_rate": {"low": 1e-3, "high": 1e-2, "log": True},
    }
    plan = submitted(root, trials=24, space=space, rungs=[1])
    trials = Stub(root, plan).drive().ledger.trials
    for trial in trials:
        kind = trial.arm.model.layers[0].kind
        assert ("m2rnn.key_dim" in trial.params) == (kind == "m2rnn")
        if kind == "m2rnn":
            assert trial.arm.model.layers[1].options["key_dim"] == trial.params["m2rnn.key_dim"]
        assert trial.arm.model.width == trial.params["width"]
        assert 1e-3 <= trial.arm.train.optimiser.learning_rate <= 1e-2
    assert len({t.params["learning_rate"] for t in trials}) == 24


def test_fresh_seeds_show_the_winners_curse(root):
    def lucky(run):
        noise = int(run.hash[:6], 16) / 16**6
        return 2.0 + noise * 0.5  # nothing but luck

    plan = submitted(root, trials=30, rungs=[1], again={"seeds": 8, "members": 1})
    trials = Stub(root, plan, score=lucky).drive().ledger.trials
    (look,) = second_looks(plan.sweep, trials)
    assert look.lost > 0.1
    assert len(look.fresh) == 8
    assert look.low < 2.25 < look.high
    assert tokens_in_full(plan.sweep, trials) == 30 * 25600


def test_another_roots_study_is_refused(root, tmp_path, corpus):
    url = f"sqlite:///{tmp_path}/shared.db"
    plan = submitted(root, storage=url, trials=3)
    Stub(root, plan).drive()
    from arch_search.storage import Root

    other = Root(tmp_path / "other").make()
    (other.path / "data").symlink_to(corpus.path / "data")
    theirs = submitted(other, storage=url, trials=3)
    with pytest.raises(UsageError, match="another storage root"):
        Sweep.open(other, theirs)
    optuna.load_study(study_name=f"s-{plan.sweep_version[:8]}", storage=url)


def test_a_job_takes_along_every_block_that_a_trial_may_have(root):
    plan = submitted(root)
    slots = {block_class(name).__module__ for name in plan.sweep.space.layout.slots}
    assert len(slots) > len({layer.kind for layer in plan.arms[0].model.layers})
    assert slots <= modules_of(plan)
