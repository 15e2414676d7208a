"""The main job on real text, Ray and MLflow: from a file to a compared result, kills included."""

import os
import subprocess
import sys
import time

import psutil
import pytest
from mlflow import MlflowClient

import arch_search
from arch_search.journal import read_curve, read_stream
from arch_search.progress import read_status
from arch_search.storage import Root

from .conftest import FIRST, SMALL

pytestmark = pytest.mark.services

OVERRIDES = (
    *(o for o in SMALL if not o.startswith("log=")),
    "train.tokens=230K",  # 899 steps: long enough to be killed three times
    "log={every: 10, checkpoint_every: 25, validate_every: 100, validation_tokens: 1000}",
)


def command(root, *arguments):
    environment = {**os.environ, "ARCH_SEARCH_ROOT": str(root.path), "COLUMNS": "160"}
    return subprocess.run(
        [sys.executable, "-m", "arch_search.cli", *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def wait_for(condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return found


def live_attempts(root, name):
    """Live attempts that have passed a checkpoint of their own."""
    plan = root.experiment(name).plan()
    last = [a for p in plan.runs for a in root.run(p.hash).attempts()[-1:]]
    return [a for a in last if a.end() is None and a.checkpoints()]


def kill_in_turn(root, name):
    """SIGKILL a worker, then the raylet, then the driver, each after a new attempt's progress."""
    driver = psutil.Process(root.experiment(name).read("driver.json")["pid"])
    seen = set()

    def fresh():
        return [a for a in live_attempts(root, name) if a.path not in seen]

    def strike(process):
        plan = root.experiment(name).plan()
        seen.update(a.path for p in plan.runs for a in root.run(p.hash).attempts())
        process.kill()

    strike(psutil.Process(wait_for(fresh)[0].lease()["pid"]))
    wait_for(fresh)
    strike(next(c for c in driver.children(recursive=True) if c.name() == "raylet"))
    wait_for(fresh)
    pids = [a.lease()["pid"] for a in live_attempts(root, name)]
    strike(driver)
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def facts(root, name):
    """All that must not depend on what was killed."""
    plan = root.experiment(name).plan()
    found = {}
    for planned in plan.runs:
        run = root.run(planned.hash)
        losses = [
            (p.step, p.values["train/loss"]) for p in read_curve(run) if "train/loss" in p.values
        ]
        scores = [run.evaluation(e)["metrics"] for e in plan.evaluations]
        found[planned.hash] = (run.result()["stream"], losses, read_stream(run), scores)
    return found


def tracked(root, name):
    client = MlflowClient(f"sqlite:///{root.path}/mlflow.db?timeout=60")
    experiment = client.get_experiment_by_name(name)
    runs = {r.info.run_name: r for r in client.search_runs([experiment.experiment_id])}
    return client, runs


def test_kills_change_nothing_and_a_finished_experiment_starts_nothing(root):
    calm, rough = root, Root(root.path.parent / "rough").make()
    (rough.path / "data").symlink_to(root.path / "data")
    done = command(calm, "submit", FIRST, *OVERRIDES, "--wait")
    assert done.returncode == 0, done.stderr
    assert "all 2 runs finished" in done.stdout
    assert (calm.experiment("first_ablation").report / "report.html").exists()

    assert command(rough, "submit", FIRST, *OVERRIDES).returncode == 0
    kill_in_turn(rough, "first_ablation")
    status = command(rough, "status", "first_ablation")
    assert status.returncode == 0, status.stderr
    _, runs = tracked(rough, "first_ablation")
    assert "RUNNING" not in {r.info.status for r in runs.values()}
    resumed = command(rough, "resume", "first_ablation", "--wait")
    assert resumed.returncode == 0, resumed.stderr
    assert "compare first_ablation --json" in resumed.stdout

    assert facts(rough, "first_ablation") == facts(calm, "first_ablation")
    plan = rough.experiment("first_ablation").plan()
    attempts = [len(rough.run(p.hash).attempts()) for p in plan.runs]
    assert sum(attempts) >= 2 + 3
    client, runs = tracked(rough, "first_ablation")
    assert {r.info.status for r in runs.values()} == {"FINISHED"}
    for planned in plan.runs:
        run = runs[f"first_ablation/{planned.arm}/{planned.seed}"]
        history = client.get_metric_history(run.info.run_id, "train/loss")
        assert [m.step for m in history] == sorted({*range(10, 900, 10), *range(25, 900, 25), 899})

    again = command(rough, "submit", FIRST, *OVERRIDES, "--wait")
    assert again.returncode == 0
    assert "nothing to do" in again.stdout
    assert [len(rough.run(p.hash).attempts()) for p in plan.runs] == attempts
    frame = arch_search.results("first_ablation", root=rough.path)
    assert list(frame["state"]) == ["FINISHED", "FINISHED"]
    assert frame["val/bits_per_byte"].between(2, 8).all()
    assert not read_status(rough, "first_ablation").is_live
