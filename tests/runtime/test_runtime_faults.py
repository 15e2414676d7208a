"""Kill anything at any time: what finished stays, what ran continues, every record is true."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from mlflow import MlflowClient
from plans import environment, make_plan, start_driver, wait_for, write
from standin import BAD_VALUE, DIES, DIVERGES, NEVER_STOPS

from arch_search.commands.control import settle_experiment
from arch_search.files import dump_json, write_atomic
from arch_search.journal import read_curve
from arch_search.progress import read_status
from arch_search.scheduling.launch import launch
from arch_search.storage import Root

pytestmark = pytest.mark.services


def step_of(root: Root, name: str, attempt: int) -> int:
    """The step of the first run, once it is at this attempt or a later one."""
    run = read_status(root, name).runs[0]
    return run.step if run.attempts >= attempt and run.state == "RUNNING" else -1


def kill_child(pid: int, name: str) -> None:
    for child in psutil.Process(pid).children(recursive=True):
        if child.name() == name:
            child.kill()
            return
    raise AssertionError(f"the driver has no {name}")


def tracked(root: Root, name: str) -> tuple[dict[str, str], dict[str, list[Any]]]:
    """From MLflow: each run's status by its name, and its training losses as (step, value)."""
    client = MlflowClient(f"sqlite:///{root.path}/mlflow.db?timeout=60")
    experiment = client.get_experiment_by_name(name)
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    statuses = {str(run.info.run_name): run.info.status for run in runs}
    losses = {
        str(run.info.run_name): [
            (m.step, m.value) for m in client.get_metric_history(run.info.run_id, "train/loss")
        ]
        for run in runs
    }
    return statuses, losses


def outcome(root: Root, name: str) -> list[Any]:
    """All that must not depend on what was killed."""
    plan = root.experiment(name).plan()
    rows = []
    for planned in plan.runs:
        run = root.run(planned.hash)
        result = run.result()
        assert result is not None
        rows.append((result["metrics"], result["stream"], run.evaluation(plan.evaluations[0])))
        rows.append([(p.step, p.values) for p in read_curve(run)])
    return rows


def test_killed_worker_raylet_gcs_and_driver_leave_no_trace(
    new_root: Callable[[str], Root], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan("kills", steps=120)
    calm, rough = new_root("calm"), new_root("rough")
    for root in (calm, rough):
        write(root, plan)
    assert start_driver(calm, "kills").wait(120) == 0

    driver = start_driver(rough, "kills", step_seconds=0.08)
    wait_for(lambda: step_of(rough, "kills", 1) > 12)
    lease = rough.run(plan.runs[0].hash).attempts()[0].lease()
    os.kill(lease["pid"], signal.SIGKILL)
    wait_for(lambda: step_of(rough, "kills", 2) > 22)
    kill_child(driver.pid, "raylet")
    wait_for(lambda: step_of(rough, "kills", 3) > 32)
    kill_child(driver.pid, "gcs_server")
    wait_for(lambda: step_of(rough, "kills", 4) > 42)
    driver.kill()
    driver.wait()
    ray_folder = Path(rough.experiment("kills").read("driver.json")["ray_folder"])
    assert ray_folder.exists()
    status = read_status(rough, "kills")
    assert status.driver == "LOST"
    assert status.count("FINISHED") == 0

    wait_for(lambda: not any(run.state == "RUNNING" for run in read_status(rough, "kills").runs))
    settle_experiment(rough, rough.experiment("kills"))
    assert "RUNNING" not in tracked(rough, "kills")[0].values()

    for key, value in environment(0).items():
        monkeypatch.setenv(key, value)
    launch(rough, "kills", execute="standin:execute")
    wait_for(lambda: not read_status(rough, "kills").is_live)

    assert not ray_folder.exists()
    assert outcome(rough, "kills") == outcome(calm, "kills")
    attempts = rough.run(plan.runs[0].hash).attempts()
    assert len(attempts) == 5
    ends = [(a.end() or {})["state"] for a in attempts]
    assert (ends[0], ends[-1]) == ("LOST", "FINISHED")
    # Ray sends SIGTERM to a worker whose raylet or driver dies; one that hears it in time says so.
    assert set(ends[1:-1]) <= {"LOST", "PREEMPTED"}
    assert all(a.lease()["resumed_from"]["step"] > 0 for a in attempts[1:])
    statuses, losses = tracked(rough, "kills")
    assert set(statuses.values()) == {"FINISHED"}
    assert losses == tracked(calm, "kills")[1]
    for planned in plan.runs:
        curve = losses[f"kills/only/{planned.seed}"]
        assert [step for step, _ in curve] == list(range(1, 121))
    assert launch(rough, "kills", execute="standin:execute").is_nothing


def test_a_failed_run_harms_no_other_and_says_why(new_root: Callable[[str], Root]) -> None:
    plan = make_plan("failures", seeds=(1, DIVERGES, BAD_VALUE, DIES))
    root = new_root("root")
    write(root, plan)
    driver = start_driver(root, "failures", step_seconds=0.05)
    wait_for(lambda: step_of(root, "failures", 1) > 12)
    os.kill(root.run(plan.runs[0].hash).attempts()[0].lease()["pid"], signal.SIGTERM)
    assert driver.wait(120) == 1
    runs = {run.seed: run for run in read_status(root, "failures").runs}
    assert runs[1].state == "FINISHED"
    ends = [(a.end() or {})["state"] for a in root.run(runs[1].hash).attempts()]
    assert ends == ["PREEMPTED", "FINISHED"], "a machine taken back is no failure"
    result = root.run(runs[1].hash).result()
    assert result is not None
    assert result["environment"]["threads"] == "1"
    assert result["environment"]["visible_gpus"] == "", "a run without GPUs must see none"
    assert {runs[s].state for s in (DIVERGES, BAD_VALUE, DIES)} == {"FAILED"}
    assert [runs[s].attempts for s in (DIVERGES, BAD_VALUE, DIES)] == [1, 1, 3]
    end = root.run(runs[DIVERGES].hash).attempts()[0].end()
    assert end is not None
    assert (end["step"], end["final"]) == (7, True)
    assert "a shape disagrees" in runs[BAD_VALUE].reason
    trace = root.run(runs[BAD_VALUE].hash).attempts()[0].path / "traceback.txt"
    assert "ValueError: a shape disagrees" in trace.read_text()
    statuses, losses = tracked(root, "failures")
    assert statuses["failures/only/1"] == "FINISHED"
    assert statuses[f"failures/only/{DIES}"] == "FAILED"
    assert [step for step, _ in losses[f"failures/only/{DIVERGES}"]] == [1, 2, 3, 4, 5, 6]


def test_stop_is_kind_first_and_hard_in_the_end(new_root: Callable[[str], Root]) -> None:
    plan = make_plan("stops", seeds=(1, NEVER_STOPS), steps=10_000)
    root = new_root("root")
    write(root, plan)
    driver = start_driver(root, "stops", "--grace", "3", step_seconds=0.02)
    wait_for(lambda: all(run.step > 10 for run in read_status(root, "stops").runs))
    second = start_driver(root, "stops")
    assert second.wait(60) == 2, "two drivers must not own one experiment"
    asked = {"state": "KILLED", "reason": "stopped by a person"}
    write_atomic(root.experiment("stops").stop, dump_json(asked))
    assert driver.wait(60) == 1
    status = read_status(root, "stops")
    assert status.driver == "STOPPED"
    kind, hard = status.runs
    assert (kind.state, kind.reason) == ("KILLED", "stopped by a person")
    assert (hard.state, hard.reason) == ("KILLED", "did not stop within 3 s")
    assert set(tracked(root, "stops")[0].values()) <= {"KILLED", "FAILED"}


def test_two_experiments_share_a_run_and_train_it_once(new_root: Callable[[str], Root]) -> None:
    root = new_root("root")
    plans = [make_plan(name, seeds=(1,), steps=60) for name in ("left", "right")]
    for plan in plans:
        write(root, plan)
    drivers = [start_driver(root, plan.name, step_seconds=0.1) for plan in plans]
    assert [driver.wait(90) for driver in drivers] == [0, 0]
    run = root.run(plans[0].runs[0].hash)
    ends = [(a.end() or {})["state"] for a in run.attempts()]
    assert ends.count("FINISHED") == 1
    assert set(ends) <= {"FINISHED", "LOST"}, "at one moment, the later claim fences the earlier"
    for name in ("left", "right"):
        statuses, losses = tracked(root, name)
        assert statuses[f"{name}/only/1"] == "FINISHED"
        assert [step for step, _ in losses[f"{name}/only/1"]] == list(range(1, 61))
