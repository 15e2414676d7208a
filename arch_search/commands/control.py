"""`status`, `stop`, `resume`: they read the storage root and work after the driver died."""

import json
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.table import Table

from arch_search.commands.follow import follow, status_view
from arch_search.commands.names import NameArgument, experiment_names
from arch_search.commands.screen import screen
from arch_search.errors import UsageError
from arch_search.files import dump_json, write_once
from arch_search.lease import is_live, settle
from arch_search.progress import ExperimentStatus, has_driver, read_status
from arch_search.storage import ExperimentFolder, Root
from arch_search.unknown import unknown_experiment

if TYPE_CHECKING:
    from arch_search.scheduling.launch import Launched

UNREADABLE = "UNREADABLE"  # in place of a driver's state: a file of the experiment is damaged
STOP_SECONDS = 90.0  # the driver's grace for its runs, and some

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def status(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", autocompletion=experiment_names)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """How an experiment stands; without a name, all of them."""
    root = Root()
    if name is not None:
        settle_experiment(root, find(root, name))
        found = read_status(root, name)
        print(json.dumps(_as_data(found), indent=1)) if as_json else _print(status_view(found))
        return
    every = [_read_or_say_why_not(root, folder.name) for folder in root.experiments()]
    if as_json:
        print(json.dumps([_as_data(one) for one in every], indent=1))
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("experiment", "driver", "runs", "finished", "running", "failed"):
        table.add_column(column, overflow="fold")
    for one in every:
        counts = [one.count(state) for state in ("FINISHED", "RUNNING", "FAILED")]
        table.add_row(one.name, one.driver, *map(str, (len(one.runs), *counts)))
    _print(table if every else f"no experiments under {root.path}")
    for one in every:
        if one.driver == UNREADABLE:
            _print(f"{one.name}: {one.reason}")


def _read_or_say_why_not(root: Root, name: str) -> ExperimentStatus:
    """One damaged file hides no other experiment."""
    try:
        return read_status(root, name)
    except UsageError as error:
        reason = str(error)
        return ExperimentStatus(name=name, driver=UNREADABLE, reason=reason, tracking="", runs=())


def _as_data(status: ExperimentStatus) -> dict[str, Any]:
    return {**asdict(status), "seconds_left": status.seconds_left}


def stop(
    name: NameArgument,
    wait: Annotated[bool, typer.Option(help="Return when all has stopped.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Stop an experiment, its runs at a checkpoint.

    'resume' goes on from there.
    """
    root = Root()
    folder = find(root, name)
    settle_experiment(root, folder)

    def say(state: str, words: str) -> None:
        print(json.dumps({"name": name, "state": state}) if as_json else words)

    if not _at_work(root, folder):
        say("not running", f"{name} is not running")
        return
    write_once(folder.stop, dump_json({"state": "KILLED", "reason": "stopped by a person"}))
    deadline = time.monotonic() + STOP_SECONDS
    while wait and _at_work(root, folder) and time.monotonic() < deadline:
        time.sleep(0.2)
    if not _at_work(root, folder):
        settle_experiment(root, folder)
        say("stopped", f"{name} has stopped; go on with: arch-search resume {name}")
    else:
        say("stopping", f"{name} is stopping; see: arch-search status {name}")


def resume(
    name: NameArgument,
    address: Annotated[
        str | None, typer.Option("--address", help="A Ray cluster; this machine if not given.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Follow it to its end, then compare and report.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Runs at once; 0: what fits.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Go on with an experiment from its checkpoints.

    What has finished stays as it is.
    """
    root = Root().make()
    find(root, name)
    code = start(root, name, address=address, wait=wait, limit=limit, as_json=as_json)
    if wait and not as_json:
        from arch_search.commands.ending import show_ending  # what `status` can do without

        show_ending(root, name)
    if code:
        raise typer.Exit(code)


def start(
    root: Root,
    name: str,
    *,
    address: str | None = None,
    wait: bool = False,
    limit: int = 0,
    as_json: bool = False,
) -> int:
    """Launch the driver of a planned experiment, and follow it if asked to; returns an exit code.

    Args:
        as_json: print one JSON object in the end, and progress to stderr.

    Raises:
        UsageError: as `scheduling.launch.launch`.
    """
    from arch_search.scheduling.launch import launch  # the start-up of `status` need not load it

    launched = launch(root, name, address=address, limit=limit)
    return tell(root, name, launched, wait=wait, as_json=as_json)


def tell(root: Root, name: str, launched: "Launched", *, wait: bool, as_json: bool) -> int:
    """Say what was launched, and follow it if asked to; returns an exit code."""
    if launched.anew:
        said = f"{name}: trained anew, since their folders are gone: {', '.join(launched.anew)}"
        print(said, file=sys.stderr if as_json else sys.stdout)
    if as_json:
        return _start_told_as_json(root, name, launched, wait=wait)
    if launched.is_nothing:
        print(f"{name}: nothing to do, all runs have finished")
        return 0
    if not wait:
        where = f"as job {launched.job}" if launched.job else f"in process {launched.pid}"
        print(f"{name} runs {where}; see: arch-search status {name}")
        return 0
    return _follow(root, name, launched)


def _follow(root: Root, name: str, launched: "Launched", console: Console | None = None) -> int:
    if not launched.job:
        return follow(root, name, console=console)
    from arch_search.scheduling.jobs import ended

    return follow(root, name, console=console, ended=lambda: ended(launched.address, launched.job))


def _start_told_as_json(root: Root, name: str, launched: "Launched", *, wait: bool) -> int:
    code = 0
    if wait and not launched.is_nothing:
        code = _follow(root, name, launched, screen(stderr=True))
    started = {"pid": launched.pid, "job": launched.job, "nothing_to_do": launched.is_nothing}
    print(json.dumps({**started, **_as_data(read_status(root, name))}, indent=1))
    return code


def find(root: Root, name: str) -> ExperimentFolder:
    """The folder of an experiment that exists. Raises UsageError naming the nearest."""
    folder = root.experiment(name)
    if not (folder.path / "plan.json").exists():
        raise UsageError(unknown_experiment(root, name))
    return folder


def settle_experiment(root: Root, folder: ExperimentFolder) -> None:
    """End what a dead process left open, here and in MLflow."""
    plan = folder.plan()
    settle(root, [root.run(planned.hash) for planned in plan.runs])
    tracking = folder.read("tracking.json")
    if not _at_work(root, folder) and (tracking.get("open") or tracking.get("behind")):
        from arch_search.tracking.writer import reconcile  # seconds of imports, only when needed

        reconcile(root, plan)


def _at_work(root: Root, folder: ExperimentFolder) -> bool:
    """Whether a driver, or a worker that it left behind, still works on the experiment."""
    if has_driver(folder):
        return True
    runs = [root.run(planned.hash) for planned in folder.plan().runs]
    last = [attempts[-1] for run in runs if (attempts := run.attempts())]
    return any(is_live(a) and a.lease().get("experiment") == folder.name for a in last)


def _print(what: RenderableType) -> None:
    screen().print(what)
