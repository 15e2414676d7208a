"""A machine too busy for Ray to come up in its half minute: tried again, cleared up, said."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import ray

from arch_search.scheduling.ray_folder import clear, make_folder
from arch_search.scheduling.ray_start import TRIES, start_ray

SLEEP = ("-c", "import time; time.sleep(600)")
SLOW = "The current node timed out during startup. This could happen because some of the raylet …"


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch):
    """Ray that comes up at the n-th try; before that it leaves a process, as the real one does."""

    def arrange(comes_up_at: int, message: str = SLOW) -> list[str]:
        folders: list[str] = []

        def init(*, address: str, _temp_dir: str) -> None:
            assert address == "local"
            folders.append(str(Path(_temp_dir).parent))
            if len(folders) < comes_up_at:
                subprocess.Popen(["sleep", "600"])
                raise Exception(message)

        monkeypatch.setattr(ray, "init", init)
        return folders

    return arrange


def test_a_slow_start_is_tried_again_and_leaves_nothing(slow) -> None:
    folders, before = slow(comes_up_at=3), set(psutil.Process().children())
    folder = start_ray(make_folder)
    assert folders[-1] == folder
    assert len(set(folders)) == 3
    assert [Path(path).exists() for path in folders] == [False, False, True]
    Path(folder, "owner.json").unlink()
    Path(folder).rmdir()
    assert set(psutil.Process().children()) <= before


def test_a_machine_that_stays_too_busy_is_said(slow) -> None:
    folders = slow(comes_up_at=99)
    with pytest.raises(RuntimeError, match=r"too busy\? Go on with 'arch-search resume'"):
        start_ray(make_folder)
    assert len(folders) == TRIES
    assert not any(Path(path).exists() for path in folders)


def test_another_failure_is_not_tried_again(slow) -> None:
    folders = slow(comes_up_at=99, message="no such option")
    with pytest.raises(Exception, match="no such option"):
        start_ray(make_folder)
    assert len(folders) == 1
    assert not Path(folders[0]).exists()


def test_what_serves_a_folder_ends_with_it_and_workers_do_not() -> None:
    folder = make_folder()
    log = Path(folder, "agent.log")
    log.touch()

    def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [name, *SLEEP, *arguments]
        with log.open() as opened:
            return subprocess.Popen(command, executable=sys.executable, stdin=opened)

    agent, worker = start("ray::DashboardAgent"), start("ray::training/arm/0")
    service = subprocess.Popen(["/ray/raylet", *SLEEP], executable=sys.executable)
    other = start("tail", str(log))  # somebody who reads along
    try:
        clear(folder)
        assert not Path(folder).exists()
        assert agent.poll() is not None
        assert [one.poll() for one in (worker, service, other)] == [None] * 3
    finally:
        for process in (agent, worker, service, other):
            process.kill()
            process.wait()
