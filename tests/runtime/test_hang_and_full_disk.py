"""Runs that hang are ended and retried; a full disk is said and survived."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from plans import environment, make_plan, start_driver, wait_for, write
from standin import DIES, HANGS

from arch_search.attempt import Attempt
from arch_search.journal import read_curve
from arch_search.progress import read_status
from arch_search.scheduling.launch import launch
from arch_search.scheduling.watchdog import Watchdog
from arch_search.storage import Root


def losses(root: Root, run_hash: str) -> list[float]:
    return [p.values["train/loss"] for p in read_curve(root.run(run_hash))]


@pytest.mark.services
def test_a_hanging_and_a_suspended_run_are_ended_and_retried(
    new_root: Callable[[str], Root],
) -> None:
    root = new_root("root")
    plan = make_plan("hangs", seeds=(HANGS, 1), steps=60, stall_seconds=8)
    write(root, plan)
    driver = start_driver(root, "hangs", step_seconds=0.1)
    suspended = root.run(plan.runs[1].hash)
    wait_for(lambda: any(a.checkpoints() for a in suspended.attempts()))
    os.kill(suspended.attempts()[0].lease()["pid"], signal.SIGSTOP)
    assert driver.wait(150) == 0
    for planned in plan.runs:
        attempts = root.run(planned.hash).attempts()
        ends = [a.end() or {} for a in attempts]
        assert [end["state"] for end in ends] == ["LOST", "FINISHED"]
        assert ends[0]["reason"] == "no progress for 8 s"
        assert attempts[1].lease()["resumed_from"]["step"] > 0
        assert len(losses(root, planned.hash)) == 60


@pytest.mark.services
def test_retries_keep_to_the_limit(new_root: Callable[[str], Root]) -> None:
    root, plan = new_root("root"), make_plan("limited", seeds=(DIES, 1, 2), steps=8)
    write(root, plan)
    assert start_driver(root, "limited", "--limit", "1", step_seconds=0.05).wait(120) == 1
    attempts = [a for p in plan.runs for a in root.run(p.hash).attempts()]
    assert len(attempts) == 3 + 1 + 1
    spans = sorted((a.lease()["claimed"], (a.end() or {})["time"]) for a in attempts)
    for (_, ended), (begun, _) in pairwise(spans):
        assert ended <= begun, "two runs at once"


def test_only_what_was_watched_counts_as_a_stall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Attempt.claim(Root(tmp_path).make().run("0123456789abcdef"))
    clock = [1_000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    watchdog, never = Watchdog(stall_seconds=25), Watchdog(stall_seconds=0)

    def after(seconds: float) -> bool:
        clock[0] += seconds
        assert not never.is_stalled("a", attempt.folder)
        return watchdog.is_stalled("a", attempt.folder)

    assert not after(1)
    assert not after(3_600), "the machine slept; nobody saw the run stand still"
    assert not after(10)
    assert after(10)


def fill(disk: Path) -> Path:
    """A file that takes what is left of a disk."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4_096))
    return ballast


# The driver behind a line that its standard output holds back, as it may hold back Ray's.
DRIVER_WITH_OUTPUT = """
import runpy
print("held back")
runpy.run_module("arch_search.scheduling.driver", run_name="__main__")
"""


@pytest.mark.services
def test_a_driver_that_finds_its_disk_full_fails_and_another_goes_on(
    small_disk: Path, database: Path
) -> None:
    root = Root(small_disk / "root").make()
    plan = make_plan("full", seeds=(1,), steps=8, tracking_uri=f"sqlite:///{database.parent}/f.db")
    write(root, plan)
    folder = root.experiment("full")
    folder.log.touch()
    ballast = fill(small_disk)
    command = [sys.executable, "-c", DRIVER_WITH_OUTPUT, "--root", root.path, "--name", "full"]
    holding_back = {**environment(0), "PYTHONUNBUFFERED": ""}
    with folder.log.open("ab") as log:
        driver = subprocess.run(command, env=holding_back, stdout=log, stderr=log, timeout=60)
    assert driver.returncode == 1
    assert not list(folder.path.glob(".*")), "what could not be written stayed"
    ballast.unlink()
    assert start_driver(root, "full").wait(120) == 0


@pytest.mark.services
def test_a_full_disk_is_said_and_what_was_done_stays(
    small_disk: Path,
    tmp_path: Path,
    database: Path,
    new_root: Callable[[str], Root],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri = f"sqlite:///{database.parent}/full.db"
    root, calm = Root(small_disk / "root").make(), new_root("calm")
    plan = make_plan("full", seeds=(1,), steps=120, tracking_uri=uri)
    for one in (root, calm):
        write(one, plan)
    driver = start_driver(root, "full", step_seconds=0.05)
    run = root.run(plan.runs[0].hash)
    wait_for(lambda: any(a.checkpoints() for a in run.attempts()))
    ballast = fill(small_disk)
    assert driver.wait(120) == 1
    told = root.experiment("full").log.read_text() + str(read_status(root, "full"))
    assert "No space left" in told or "disk full" in told
    assert run.result() is None
    kept = run.latest_checkpoint()
    assert kept is not None
    assert kept[0] >= 5

    ballast.unlink()
    for key, value in environment(0).items():
        monkeypatch.setenv(key, value)
    launch(root, "full", execute="standin:execute")
    wait_for(lambda: not read_status(root, "full").is_live)
    assert read_status(root, "full").count("FINISHED") == 1
    resumed = run.attempts()[-1].lease()["resumed_from"]
    assert resumed["step"] >= kept[0]
    assert start_driver(calm, "full").wait(120) == 0
    assert losses(root, run.hash) == losses(calm, run.hash)
