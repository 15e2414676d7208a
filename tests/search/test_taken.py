"""Results of ablations and earlier sweeps, taken into a sweep's study beside its own trials."""

import pytest

from arch_search.errors import UsageError
from arch_search.progress import is_done, read_status
from arch_search.records import read_experiment
from arch_search.search.outcome import front, tokens_in_full, tokens_used

from .conftest import BASE, Stub, merged, plan_of, story
from .test_sweep import study_of

NEXT = {"name": "next", "sweep": {"take": ["s"], "trials": 6}}


def driven(root, changes, **stub):
    plan = plan_of(root, merged(BASE, changes))
    root.experiment(plan.name).write_plan(plan)
    drive = Stub(root, plan, **stub)
    return plan, drive, drive.drive().ledger


def test_an_earlier_sweeps_trials_are_known_and_counted_apart(root):
    _, _, first = driven(root, {"sweep": {"trials": 10, "sampler": "tpe"}})
    plan, _, ledger = driven(root, NEXT)
    assert plan.notes == ("10 results are taken from s",)
    taken = [t for t in ledger.trials if t.is_taken]
    own = [t for t in ledger.trials if not t.is_taken]
    assert [(t.content, t.state, t.rung, t.params) for t in taken] == [
        (t.content, t.state, t.rung, t.params) for t in first.trials
    ]
    assert len(own) == ledger.tried == 6
    assert not {t.content for t in own} & {t.content for t in taken}
    assert tokens_in_full(plan.sweep, ledger.trials) == 6 * 25600
    assert tokens_used(plan.sweep, ledger.trials) == tokens_used(plan.sweep, own)
    both = front(plan.sweep, ledger.trials)
    assert both[0].outcomes[2].metrics["val/bits_per_byte"] == min(
        t.outcomes[2].metrics["val/bits_per_byte"] for t in ledger.trials if t.state == "COMPLETE"
    )
    assert len(study_of(root, plan).trials) == 16
    assert is_done(root, plan)
    assert {run.state for run in read_status(root, "next").runs} == {"FINISHED"}
    again = Stub(root, plan)
    assert story(again.drive().ledger.trials) == story(ledger.trials)
    assert again.done == []


def test_the_best_that_was_taken_is_looked_at_again(root):
    driven(root, {"sweep": {"enqueue": [{"pattern": "attn*2 m2rnn*2"}], "trials": 9}})
    changes = {
        "trials": 2,
        "enqueue": [{"pattern": "gdn*3 m2rnn"}],
        "again": {"members": 1, "seeds": 2},
    }
    plan, _, ledger = driven(root, merged(NEXT, {"sweep": changes}))
    (best,) = (t for t in ledger.trials if t.fresh)
    assert best.is_taken
    assert best.arm.layout == "attn*2 m2rnn*2"
    assert ledger.trials[9].origin == "enqueue"
    fresh = [run for run in read_experiment(plan.name, root).runs if run.planned.seed]
    assert {run.arm.layout for run in fresh} == {best.arm.layout}
    assert {run.state for run in read_status(root, plan.name).runs} == {"FINISHED"}


def test_a_wider_space_begins_with_what_the_narrower_one_found(root):
    _, _, first = driven(root, {"sweep": {"trials": 8}})
    wider = {"layout": {"slots": ["gdn", "m2rnn", "attn", "gru"], "depth": 4}}
    _, stub, ledger = driven(root, {"sweep": {"trials": 4, "space": wider, "take": "s"}})
    taken = {t.arm.layout: t.state for t in ledger.trials if t.is_taken}
    assert taken == {t.arm.layout: t.state for t in first.trials}
    assert len(ledger.trials) == 12
    assert story(stub.drive().ledger.trials) == story(ledger.trials)


ABLATION = {
    "name": "s",
    "sweep": ...,
    "baseline": {},
    "train": {"schedule": {"name": "wsd", "warmup": 0.02, "decay": 0.2}},
    "arms": {
        "explicit": {
            "one": {"model": {"pattern": "m2rnn gdn*2 attn"}},
            "outside": {"model": {"pattern": "gru gdn*2 attn"}},
        }
    },
    "seeds": 2,
}


def trained(root, changes):
    plan = plan_of(root, merged(BASE, merged(ABLATION, changes)))
    root.experiment(plan.name).write_plan(plan)
    stub = Stub(root, plan)
    for run in plan.runs:
        root.run(run.hash).freeze(run.spec)
        stub.perform(run)


def test_an_ablations_arms_are_found_in_the_space(root):
    trained(root, {})
    options = {"space": {"options": {"m2rnn": {"key_dim": [4, 8, 16]}}}}
    default = plan_of(root, merged(BASE, ABLATION)).arms[1].model.layers[0].options["key_dim"]
    options["space"]["options"]["m2rnn"]["key_dim"].append(default)
    _, _, ledger = driven(root, merged(NEXT, {"sweep": options}))
    taken = [t for t in ledger.trials if t.is_taken]
    assert [t.arm.layout for t in taken] == ["gdn*3 attn", "m2rnn gdn*2 attn"]
    assert taken[1].params["m2rnn.key_dim"] == default
    assert {t.state for t in taken} == {"COMPLETE"}
    assert [list(t.outcomes) for t in taken] == [[2], [2]]


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"train": {"schedule": {"name": "cosine"}}}, "train.schedule was cosine, here it is wsd"),
        ({"train": {"tokens": 12800}}, "the number of steps was 50, here it is 100"),
        ({"data": {"batch": 8}}, "data.batch was 8, here it is 4"),
        ({"evaluate": [{"perplexity": {"window": 32}}]}, "was not evaluated as here"),
        ({"seeds": [3, 4]}, "no finished run of s with seed 0 is in this space"),
        ({"model": {"width": 64}}, "no finished run of s with seed 0 is in this space"),
    ],
)
def test_what_was_trained_or_evaluated_otherwise_is_refused(root, changes, says):
    trained(root, changes)
    with pytest.raises(UsageError, match=r"sweep\.take") as caught:
        plan_of(root, merged(BASE, NEXT))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
