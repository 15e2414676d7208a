"""Starting Ray on a machine that may be too busy for the half minute that Ray gives its node."""

import logging
from collections.abc import Callable
from typing import Any

import psutil

from arch_search.scheduling.ray_folder import clear

TRIES = 3
TOO_SLOW = "timed out during startup"  # in Ray's message; its limit of 30 s cannot be set

log = logging.getLogger(__name__)


def start_ray(make_folder: Callable[[], str], **options: Any) -> str:
    """Start a cluster of our own in a folder; returns the folder.

    Args:
        make_folder: makes the folder of a try; that of a try which failed is removed.
        options: of `ray.init`.
    Raises:
        RuntimeError: the node did not come up in time, several times.
    """
    import ray

    before = set(psutil.Process().children())
    for attempt in range(1, TRIES + 1):
        folder = make_folder()
        try:
            ray.init(address="local", _temp_dir=f"{folder}/ray", **options)
            return folder
        except Exception as error:  # Ray raises no narrower one
            ray.shutdown()
            _kill(set(psutil.Process().children()) - before)
            clear(folder)
            if TOO_SLOW not in str(error):
                raise
            log.warning("Ray did not come up in time (try %d of %d)", attempt, TRIES)
    raise RuntimeError(
        f"Ray did not come up within half a minute, {TRIES} times: is this machine too busy? Go on "
        "with 'arch-search resume' when it is less so"
    )


def _kill(started: set[psutil.Process]) -> None:
    """End what a failed start left running."""
    family = {child for process in started for child in _children(process)} | started
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(list(family), timeout=10)


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
