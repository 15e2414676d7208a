"""MPS: a daemon of our own, found by the processes started inside, ended whatever happens.

NVIDIA's program needs its driver, so a script stands in for it: it answers and quits as the manual
of nvidia-cuda-mps-control(1) says. With a real one, see docs/measuring-on-a-gpu.md.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from arch_search import mps
from arch_search.errors import UsageError

DAEMON = """#!/bin/sh
here="$CUDA_MPS_PIPE_DIRECTORY"
if [ "$1" = -f ]; then
  [ -n "$REFUSE" ] && { echo "no permission" > "$CUDA_MPS_LOG_DIRECTORY/control.log"; exit 1; }
  echo $$ > "$here/pid"
  while [ ! -e "$here/quit" ]; do sleep 0.05; done
  exit 0
fi
read -r words
[ -e "$here/pid" ] || exit 1
case "$words" in quit*) [ -n "$DEAF" ] || touch "$here/quit" ;; esac
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """One whose PATH has the script."""
    program = tmp_path / "bin" / mps.PROGRAM
    program.parent.mkdir()
    program.write_text(DAEMON)
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}"}


def test_processes_started_inside_find_it_and_it_ends_with_the_block(environment):
    with mps.shared_gpu(environment) as pipes:
        daemon = psutil.Process(int((pipes / "pid").read_text()))
        assert daemon.is_running()
        told = [sys.executable, "-c", f"import os; print(os.environ['{mps.PIPES}'])"]
        found = subprocess.run(told, env=environment, capture_output=True, text=True, check=True)
        assert found.stdout.strip() == str(pipes)
        assert pipes.stat().st_mode & 0o077 == 0  # nobody else's process may join
    assert mps.PIPES not in environment
    assert not daemon.is_running()
    assert not pipes.exists()


def test_it_ends_if_what_it_served_fails_and_if_it_will_not_quit(environment, monkeypatch):
    monkeypatch.setattr(mps, "END_SECONDS", 0.5)
    environment["DEAF"] = "yes"
    seen: list[psutil.Process] = []

    def work() -> None:
        with mps.shared_gpu(environment) as pipes:
            seen.append(psutil.Process(int((pipes / "pid").read_text())))
            raise RuntimeError("a run failed")

    with pytest.raises(RuntimeError, match="a run failed"):
        work()
    (daemon,) = seen
    assert not daemon.is_running()
    assert mps.PIPES not in environment


def test_a_daemon_of_somebody_else_is_used_and_left_alone(environment, tmp_path):
    environment[mps.PIPES] = str(tmp_path)
    with mps.shared_gpu(environment) as pipes:
        assert pipes == tmp_path
    assert environment[mps.PIPES] == str(tmp_path)
    mps.abandon(environment)
    assert environment[mps.PIPES] == str(tmp_path)


def test_where_it_cannot_start_the_message_says_why(environment):
    with pytest.raises(UsageError, match=r"is not on this machine's PATH"):
        mps.shared_gpu({"PATH": "/nowhere"}).__enter__()
    with pytest.raises(UsageError, match=r"ended with 1; .* allowed here. no permission"):
        mps.shared_gpu({**environment, "REFUSE": "yes"}).__enter__()


def test_one_that_was_killed_with_ray_is_forgotten(environment):
    begun = mps.shared_gpu(environment)
    pipes = begun.__enter__()
    os.kill(int((pipes / "pid").read_text()), 9)
    time.sleep(0.1)
    mps.abandon(environment)
    assert mps.PIPES not in environment
    assert not pipes.exists()


def test_it_numbers_gpus_as_the_processes_that_it_serves_do(environment):
    environment["CUDA_VISIBLE_DEVICES"] = "1"
    with mps.shared_gpu(environment) as pipes:
        daemon = psutil.Process(int((pipes / "pid").read_text()))
        assert "CUDA_VISIBLE_DEVICES" not in daemon.environ()
        assert environment["CUDA_VISIBLE_DEVICES"] == "1"
