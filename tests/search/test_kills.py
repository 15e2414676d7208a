"""Twenty random kills of driver and workers: the right number of trials, none lost or doubled."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from arch_search.errors import UsageError
from arch_search.lease import is_live
from arch_search.progress import read_status
from arch_search.scheduling.launch import launch
from arch_search.search.trials import Ledger, ledger_path
from arch_search.storage import Root

from .conftest import BASE, plan_of, story
from .test_sweep import study_of

pytestmark = [pytest.mark.services, pytest.mark.slow]

KILLS = 20
SWEEP = {**BASE["sweep"], "trials": 16, "immune": "10%", "again": {"seeds": 1, "members": 1},
         "sampler": {"name": "tpe", "options": {"n_startup_trials": 4}}}  # fmt: skip


def prepared(root: Root):
    content = {**BASE, "train": {"tokens": 20480}, "sweep": SWEEP}  # 80 steps
    plan = plan_of(root, content)
    root.experiment("s").write_plan(plan)
    return plan


def start(root: Root, limit: int) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "arch_search.scheduling.driver", "--root", str(root.path)]
    command += ["--name", "s", "--execute", "worker:execute", "--limit", str(limit)]
    with root.experiment("s").log.open("ab") as log:
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=log,
                                stderr=log)  # fmt: skip


def live_workers(root: Root) -> list[int]:
    last = [attempts[-1] for run in root.runs() if (attempts := run.attempts())]
    return [attempt.lease()["pid"] for attempt in last if is_live(attempt)]


def test_twenty_kills_leave_the_sweep_that_would_have_been(root, tmp_path, corpus):
    calm = Root(tmp_path / "calm").make()
    (calm.path / "data").symlink_to(corpus.path / "data")
    plan = prepared(calm)
    assert start(calm, 1).wait(200) == 0, calm.experiment("s").log.read_text()[-2000:]
    prepared(root)
    chance = random.Random(5)
    killed: Counter[str] = Counter()
    most_at_once = 0
    driver = start(root, 1)
    while root.experiment("s").read("driver.json").get("pid") != driver.pid:
        time.sleep(0.05)
    second = start(root, 1)
    assert second.wait(60) == 2, "two drivers must not own one sweep"
    deadline = time.monotonic() + 400
    while driver.poll() is None and time.monotonic() < deadline:
        time.sleep(chance.uniform(0.1, 1.6) if killed.total() < KILLS else 0.5)
        workers = live_workers(root)
        most_at_once = max(most_at_once, len(workers))
        if killed.total() >= KILLS:
            continue
        if workers and chance.random() < 0.7:
            victim = workers[0]
            killed["worker"] += 1
        else:
            victim = driver.pid
            killed["driver"] += 1
        if psutil.pid_exists(victim):
            os.kill(victim, signal.SIGKILL)
        if victim == driver.pid:
            driver.wait()
            driver = start(root, 1)
    assert driver.wait(1) == 0, root.experiment("s").log.read_text()[-2000:]
    assert killed.total() == KILLS
    assert min(killed.values()) >= 3
    assert most_at_once == 1, "the limit holds through every retry"
    ours, theirs = (
        Ledger(ledger_path(one.experiment("s").path, plan.sweep_version)) for one in (root, calm)
    )
    assert len(ours.trials) == 16
    assert story(ours.trials) == story(theirs.trials)
    stored = study_of(root, plan).trials
    assert sorted(t.user_attrs["trial"] for t in stored) == list(range(16))
    assert all(t.state.is_finished() for t in stored)
    assert "RUNNING" not in {run.state for run in read_status(root, "s").runs}
    with pytest.raises(UsageError):
        launch(root, "nothing")
