"""The one driver of an experiment: its lock, and the heartbeat that others read."""

import contextlib
import fcntl
import os
import threading
import time
from typing import Any

from arch_search.errors import UsageError
from arch_search.lease import BEAT_SECONDS, holder_lives, this_host, this_process
from arch_search.progress import AT_WORK
from arch_search.storage import ExperimentFolder


class Presence:
    """Holds an experiment's driver.lock and keeps driver.json true until it is closed."""

    def __init__(self, folder: ExperimentFolder, *, descriptor: int | None = None) -> None:
        """Take the lock, or go on with an inherited descriptor that holds it.

        Raises UsageError if another driver has it.
        """
        self._folder = folder
        self.descriptor = _lock(folder) if descriptor is None else descriptor
        os.set_inheritable(self.descriptor, False)
        self._before = folder.read("driver.json")
        self._value = {**this_process(), "state": "STARTING", "reason": "", "ray_folder": ""}
        self._guard = threading.Lock()
        self._closed = threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._keep_beating, name="presence", daemon=True)
        self._thread.start()

    @property
    def left_behind(self) -> str:
        """The temporary folder of a driver that could not clear up after itself; may be empty."""
        here = self._before.get("host") == this_host()
        return self._before.get("ray_folder", "") if here else ""

    def say(self, **fields: Any) -> None:
        """Change what driver.json says: state, reason, ray_folder."""
        with self._guard:
            self._value |= fields
            self._write()

    def hand_over(self) -> int:
        """Stop beating and give the lock's descriptor to the process image that follows."""
        self._closed.set()
        self._thread.join()
        os.set_inheritable(self.descriptor, True)
        return self.descriptor

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        os.close(self.descriptor)

    def _keep_beating(self) -> None:
        while not self._closed.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError):  # a full disk must not silence the driver for good
                self.say()

    def _write(self) -> None:
        self._value["beat"] = time.time()
        self._folder.write("driver.json", self._value, durable=False)


def _lock(folder: ExperimentFolder) -> int:
    """Lock an experiment. A lock that the file system does not share is backed by the heartbeat."""
    driver = folder.read("driver.json")
    descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(_taken(folder, driver)) from None
    elsewhere = driver.get("state") in AT_WORK and driver["host"] != this_host()
    if elsewhere and holder_lives(driver, folder.path / "driver.json"):
        os.close(descriptor)
        raise UsageError(_taken(folder, driver))
    return descriptor


def _taken(folder: ExperimentFolder, driver: dict[str, Any]) -> str:
    who = f"process {driver['pid']} on {driver['host']}" if driver else "another process"
    return f"{folder.name} is being run by {who}; follow it with 'arch-search status {folder.name}'"
