"""`arch-search submit`: plan, then run on local Ray or on a cluster."""

import contextlib
import fcntl
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from arch_search.commands.control import tell
from arch_search.commands.ending import show_ending
from arch_search.commands.plan import FileArgument, OverridesArgument
from arch_search.errors import UsageError
from arch_search.plan_spec import Plan
from arch_search.progress import has_driver
from arch_search.storage import Root


def submit(
    file: FileArgument,
    overrides: OverridesArgument = None,
    address: Annotated[
        str | None,
        typer.Option("--address", help="A Ray cluster, as http://head:8265; this machine if not."),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Follow it to its end, then compare and report.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Runs at once; 0: what fits.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was started and how it stands as JSON.")
    ] = False,
) -> None:
    """Run an experiment. What has finished before, by content hash, is not run again."""
    root = Root().make()
    name, code = _submit(
        file, overrides or [], root, address=address, wait=wait, limit=limit, as_json=as_json
    )
    if wait and not as_json:
        show_ending(root, name)
    if code:
        raise typer.Exit(code)


def submit_file(
    file: Path, overrides: Sequence[str], root: Root, *, address: str | None, wait: bool
) -> str:
    """Submit an experiment file; returns the experiment's name. See `arch_search.submit`."""
    name, _ = _submit(file, overrides, root, address=address, wait=wait, limit=0)
    return name


def _submit(
    file: Path,
    overrides: Sequence[str],
    root: Root,
    *,
    address: str | None,
    wait: bool,
    limit: int,
    as_json: bool = False,
) -> tuple[str, int]:
    from arch_search.planned_data import require_data
    from arch_search.planning import make_plans  # imports torch, which other commands do without

    plan, tuning = make_plans(file, root, overrides)
    require_data(plan)
    _require_idle(root, plan.name)
    if tuning is not None:
        words = f"{plan.name}: first the learning rates, {len(tuning.runs)} runs in {tuning.name}"
        print(words, file=sys.stderr if as_json else sys.stdout)
        _start(tuning, root, address=address, wait=True, limit=limit, as_json=as_json)
        plan, tuning = make_plans(file, root, overrides)
    if tuning is not None:
        words = f"{tuning.name} is not complete: submit again to go on"
        print(words, file=sys.stderr if as_json else sys.stdout)
        return tuning.name, 1
    code = _start(plan, root, address=address, wait=wait, limit=limit, as_json=as_json)
    return plan.name, code


def _start(
    plan: Plan, root: Root, *, address: str | None, wait: bool, limit: int, as_json: bool
) -> int:
    from arch_search.scheduling.launch import launch, nothing_left, require_what_runs_need

    if not nothing_left(root, plan):
        require_what_runs_need(root, plan, here=address is None)  # before anything is written
    with _one_submission(root, plan.name):
        _require_idle(root, plan.name)
        for run in plan.runs:
            root.run(run.hash).freeze(run.spec)
        if said := _replaced(root, plan):
            print(said, file=sys.stderr if as_json else sys.stdout)
        root.experiment(plan.name).write_plan(plan)
        launched = launch(root, plan.name, address=address, limit=limit)
    return tell(root, plan.name, launched, wait=wait, as_json=as_json)


@contextlib.contextmanager
def _one_submission(root: Root, name: str) -> Iterator[None]:
    """One at a time for each name, until its driver holds it: plans cannot be swapped."""
    folder = root.experiment(name).path
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "submit.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _replaced(root: Root, plan: Plan) -> str:
    """What a submission under a known name takes out of view, in words; empty if nothing."""
    folder = root.experiment(plan.name)
    if not (folder.path / "plan.json").exists():
        return ""
    try:
        before = folder.frozen_plan()
    except UsageError as error:
        return f"{error}. This submission takes its place; it stays in {folder.path / 'plans'}"
    gone = {run.hash for run in before.runs} - {run.hash for run in plan.runs}
    if not gone or before.sweep is not None:
        return ""
    return (
        f"{plan.name}: this plan takes the place of the one of {before.created}; {len(gone)} of "
        f"its {len(before.runs)} runs are not in it. They stay under the root, and the old plan in "
        f"{folder.path / 'plans'}; to keep both in view, give this one another name (name=…)"
    )


def _require_idle(root: Root, name: str) -> None:
    if has_driver(root.experiment(name)):
        raise UsageError(
            f"{name} is running already; follow it with 'arch-search status {name}', "
            f"or give this one another name (name=…)"
        )
