"""The command line's verbs for Python: `arch_search.plan`, `submit`, `results`."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import pandas as pd

from arch_search.records import results as _results
from arch_search.spec import Plan
from arch_search.storage import Root

__all__ = ["plan", "results", "submit"]


def plan(
    file: str | PathLike[str],
    overrides: Sequence[str] = (),
    *,
    root: str | Path | None = None,
) -> Plan:
    """What an experiment file would run: arms, runs, sizes. Runs nothing.

    Raises:
        UsageError: anything wrong with the file.
    """
    from arch_search.planning import make_plan  # imports torch

    return make_plan(Path(file), Root(root).make(), overrides)


def submit(
    file: str | PathLike[str],
    overrides: Sequence[str] = (),
    *,
    root: str | Path | None = None,
    address: str | None = None,
    wait: bool = True,
) -> str:
    """Run an experiment on local Ray, or on the cluster at `address`; returns its name.

    Args:
        wait: return when every run has ended; otherwise as soon as the driver works.
    Raises:
        UsageError: the file, the root or the tracking server is wrong; nothing has run.
    """
    from arch_search.commands.submit import submit_file

    return submit_file(Path(file), overrides, Root(root).make(), address=address, wait=wait)


def results(name: str, *, root: str | Path | None = None) -> pd.DataFrame:
    """One row a run of an experiment: arm, factors, seed, how it ended, what it measured.

    Raises:
        UsageError: no experiment of this name.
    """
    return _results(name, Root(root))
