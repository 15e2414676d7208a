"""Who holds an attempt, and whether that process still lives.

On its own host a process is asked for by id and start time, so that a slow step or a suspended
laptop never looks like a death. On another host only the age of its heartbeat can tell; it is
measured by the shared file system's clock, so that the hosts' clocks need not agree.
"""

import contextlib
import hashlib
import os
import socket
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from arch_search.journal import read_journal
from arch_search.storage import AttemptFolder, Root, RunFolder

BEAT_SECONDS = 5.0
SILENCE_SECONDS = 120.0  # a holder on another host is gone after so long without a beat


def this_host() -> str:
    """The host's name and a mark of this boot and process space: ids mean something only there."""
    marks = []
    with contextlib.suppress(OSError):
        marks.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        marks.append(os.readlink("/proc/self/ns/pid"))
    return f"{socket.gethostname()}#{hashlib.sha256('|'.join(marks).encode()).hexdigest()[:8]}"


def this_process() -> dict[str, Any]:
    """{host, pid, pid_started, beat}: what tells later whether this process lives."""
    pid = os.getpid()
    started = psutil.Process(pid).create_time()
    return {"host": this_host(), "pid": pid, "pid_started": started, "beat": time.time()}


def process_lives(pid: int, started: float) -> bool:
    """Whether the process of this id and start time is there, and no zombie."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - started) < 1.0
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _age(file: Path) -> float:
    """Seconds since a file was written, by its own file system's clock."""
    try:
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=".clock.") as probe:
            now = os.stat(probe.name).st_mtime
    except OSError:
        now = time.time()
    try:
        return now - file.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


def holder_lives(holder: dict[str, Any], file: Path) -> bool:
    """Whether the process that `file` (a lease, driver.json) names still lives."""
    if not holder:
        return False
    if holder["host"] == this_host():
        return process_lives(holder["pid"], holder["pid_started"])
    return _age(file) < SILENCE_SECONDS


def is_live(attempt: AttemptFolder) -> bool:
    """An attempt that nobody has ended and whose holder lives."""
    if attempt.end() is not None:
        return False
    return holder_lives(attempt.lease(), attempt.path / "lease.json")


def last_step(attempt: AttemptFolder) -> int:
    """The last step that the attempt wrote of; 0 before its first."""
    records, _ = read_journal(attempt.journal)
    return max((record.step for record in records), default=0)


def settle(root: Root, runs: Iterable[RunFolder] | None = None) -> list[AttemptFolder]:
    """End the attempts whose holder is gone as LOST; returns those it ended.

    Args:
        runs: look at these only; all of the root's if None.
    """
    ended = []
    for run in root.runs() if runs is None else runs:
        for attempt in run.attempts():
            if attempt.end() is None and not is_live(attempt):
                lease = attempt.lease()
                reason = f"process {lease.get('pid')} on {lease.get('host')} is gone"
                step = last_step(attempt)
                if attempt.write_end("LOST", reason, step=step, time=time.time()):
                    ended.append(attempt)
    return ended
