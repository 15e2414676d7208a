"""3,200 stub trials, 16 of them in the air: what the driver adds to a trial."""

import statistics
import sys
import time
from pathlib import Path

import pytest
from scores import quality

from arch_search.search.sweep import Sweep
from arch_search.search.trials import Outcome

from .conftest import BASE, plan_of
from .test_sweep import study_of

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

from test_postgresql import Database, postgresql  # noqa: F401 (a fixture)

pytestmark = [pytest.mark.services, pytest.mark.slow]

TRIALS, IN_THE_AIR, MILLISECONDS = 3_200, 16, 20.0
SPACE = {
    "layout": {"slots": ["gdn", "m2rnn", "attn"], "depth": 8},
    "options": {"m2rnn": {"key_dim": [4, 8, 12]}},
    "learning_rate": {"low": 1e-3, "high": 1e-2, "log": True},
}


def overhead(root, monkeypatch, storage: str) -> float:
    """Drive a sweep whose runs end at once; the median of milliseconds a trial in the driver.

    Processor time of its thread, as other tests run beside this one; LOG.md has the clock's.
    """
    changes = {"trials": TRIALS, "space": SPACE, "storage": storage, "sampler": "tpe"}
    sweep = {**BASE["sweep"], **changes}
    plan = plan_of(root, {**BASE, "sweep": sweep})
    root.experiment("s").write_plan(plan)
    over: set[str] = set()

    def outcome(self, run):
        return Outcome(metrics={"val/bits_per_byte": quality(run)})

    monkeypatch.setattr(Sweep, "_outcome", outcome)  # no worker: the driver alone is on the clock
    driven = Sweep.open(root, plan)
    spent: list[float] = []
    before = 0
    while True:
        started = time.thread_time()
        runs = driven.due(lambda run: run.hash in over, IN_THE_AIR)
        seconds = time.thread_time() - started
        if new := len(driven.ledger.trials) - before:
            spent += [1e3 * seconds / new] * new
            before += new
        if not runs:
            break
        assert len(runs) <= IN_THE_AIR
        over.add(runs[0].hash)
    driven.telling.published.close(240)
    driven.close()
    assert driven.telling.published.behind == ""
    assert len(spent) == TRIALS
    states = [trial.state.name for trial in study_of(root, plan).get_trials(deepcopy=False)]
    assert len(states) == TRIALS
    assert "RUNNING" not in states
    assert "FAIL" not in states
    return statistics.median(spent)


def test_against_the_journal_proposed_by_tpe(root, monkeypatch):
    assert overhead(root, monkeypatch, "") < MILLISECONDS


def test_against_postgresql_proposed_by_tpe(root, monkeypatch, postgresql: "Database"):  # noqa: F811
    assert overhead(root, monkeypatch, postgresql.uri) < MILLISECONDS
    plan = root.experiment("s").frozen_plan()
    assert postgresql.password not in (root.experiment("s").path / "plan.json").read_text()
    assert plan.sweep is not None
    assert "***" in plan.sweep.storage
