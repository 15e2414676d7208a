"""What TPE looks at once a sweep is long: as much as ever, and the same after a kill."""

from optuna.study import StudyDirection
from optuna.trial import TrialState, create_trial

from arch_search.search.remembered import telling

from .conftest import Stub, story, submitted


def trial(value=None, *, step=0, score=0.0, excess=0.0):
    state = TrialState.PRUNED if value is None else TrialState.COMPLETE
    made = create_trial(
        state=state,
        values=None if value is None else [value] if isinstance(value, float) else list(value),
        intermediate_values={step: score} if step else {},
    )
    made.set_constraint("limit", excess)
    return made


def test_the_best_and_the_newest_are_remembered():
    trials = {i: trial(float(i % 50)) for i in range(200)}
    trials[7] = trial(-1.0, excess=0.5)
    best, first = telling(trials, [StudyDirection.MINIMIZE], 100)
    assert first == 125
    assert best == {i for i in range(200) if i % 50 < 7 and i != 7} - {156, 106, 56}
    best, _ = telling(trials, [StudyDirection.MAXIMIZE], 100)
    assert {trials[i].value for i in best} == {49.0, 48, 47, 46, 45, 44, 43}


def test_pruned_trials_come_after_complete_ones_by_how_far_they_came():
    trials = {
        0: trial(5.0),
        **{i: trial(step=1, score=float(i)) for i in range(1, 60)},
        **{i: trial(step=2, score=9.0 - i) for i in range(60, 70)},
    }
    best, first = telling(trials, [StudyDirection.MINIMIZE], 100)
    assert first == 0
    assert best == {0, *range(60, 70), *range(1, 15)}


def test_with_two_objectives_the_front_is_remembered():
    trials = {i: trial((float(i % 100), float(-i))) for i in range(300)}
    best, _ = telling(trials, [StudyDirection.MINIMIZE] * 2, 100)
    assert best >= set(range(200, 220))


def test_a_long_sweep_shows_its_sampler_as_many_trials_as_it_is_told_to(root, tmp_path, corpus):
    from arch_search.storage import Root

    changes = {
        "trials": 126,
        "space": {
            "layout": {"slots": ["gdn", "m2rnn", "attn"], "depth": 4},
            "learning_rate": {"low": 1e-3, "high": 1e-2, "log": True},
        },
        "sampler": {"name": "tpe", "history": 100},
        "rungs": [1],
    }
    calm_root = Root(tmp_path / "calm").make()
    (calm_root.path / "data").symlink_to(corpus.path / "data")
    calm = Stub(calm_root, submitted(calm_root, **changes)).drive()
    seen = calm.proposals._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    assert 75 <= len(seen) <= 110
    values = [t.outcomes[0].metrics["val/bits_per_byte"] for t in calm.ledger.trials]
    assert set(sorted(values[:125])[:25]) <= {t.value for t in seen}
    assert set(values[50:]) <= {t.value for t in seen}
    plan = submitted(root, **changes)
    rough = Stub(root, plan)
    rough.drive(stop_after=112)
    assert story(rough.drive().ledger.trials) == story(calm.ledger.trials)
