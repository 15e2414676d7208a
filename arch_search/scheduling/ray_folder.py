"""The temporary folder of a Ray cluster of our own: made for nobody else, gone with its owner.

A folder names the process that it belongs to. Who is killed cannot clear up after itself, so that
whoever starts a cluster next clears what belongs to no living process.
"""

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from arch_search.errors import UsageError
from arch_search.files import dump_json, read_json
from arch_search.lease import process_lives, this_host, this_process

PREFIX = "arch-search-"
OWNER = "owner.json"
AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
CLEAR_SECONDS = 5.0  # what the processes of a killed cluster get to be gone


def make_folder() -> str:
    """A folder that no other user can enter: mode 0700, as Ray opens its own to everyone."""
    folder = tempfile.mkdtemp(prefix=PREFIX)
    (Path(folder) / OWNER).write_text(dump_json(this_process()))
    return folder


def clear(folder: str) -> None:
    """Remove such a folder, and end what still works in it; only ever one that we named."""
    path = Path(folder or "/")
    if path.name.startswith(PREFIX) and path.parent == Path(tempfile.gettempdir()):
        _end_services(folder)  # an agent that outlives its raylet would make the folder anew
        deadline = time.monotonic() + CLEAR_SECONDS
        while path.exists() and time.monotonic() < deadline:
            shutil.rmtree(path, ignore_errors=True)  # a dying service may still write into it
            time.sleep(0.1 if path.exists() else 0)


def _end_services(folder: str) -> None:
    """Kill what Ray runs in the folder, workers apart: they may yet save and say how they ended."""
    found = []
    for process in psutil.process_iter(["cmdline", "uids"]):
        with contextlib.suppress(psutil.Error, OSError):
            uids = process.info["uids"]
            if uids and uids.real == os.getuid() and _serves(process, f"{folder}/"):
                process.kill()
                found.append(process)
    psutil.wait_procs(found, timeout=CLEAR_SECONDS)


def _serves(process: psutil.Process, inside: str) -> bool:
    command = " ".join(process.info["cmdline"] or ())
    if command.startswith(AGENTS):  # they call themselves so, and hide their arguments
        return any(file.path.startswith(inside) for file in process.open_files())
    return "/ray/" in command.replace(inside, "") and inside in command


def clear_abandoned() -> None:
    """Remove the folders of this user whose owner was a process of this host and is gone."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, UsageError):  # gone meanwhile; cut off while it was made
            ours = not path.is_symlink() and path.stat().st_uid == os.getuid()
            if ours and _is_abandoned(read_json(path / OWNER)):
                clear(str(path))


def _is_abandoned(owner: dict[str, Any] | None) -> bool:
    if owner is None or owner["host"] != this_host():
        return False
    return not process_lives(owner["pid"], owner["pid_started"])
