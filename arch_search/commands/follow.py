"""Watches an experiment until its driver ends: live on a terminal, in plain lines elsewhere."""

import time
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from arch_search.commands.screen import screen
from arch_search.lease import settle
from arch_search.progress import WAITED_FOR, ExperimentStatus, RunStatus, read_status
from arch_search.storage import Root

STYLES = {
    "FINISHED": "green",
    "RUNNING": "cyan",
    "FAILED": "red",
    "LOST": "red",
    "KILLED": "yellow",
}
ROWS = 40  # a live table higher than the screen cannot be drawn


def follow(
    root: Root,
    name: str,
    *,
    console: Console | None = None,
    ended: Callable[[], str] | None = None,
) -> int:
    """Show progress until the driver ends. Exit code 0: all runs finished; 1: not all did.

    Ctrl-C stops the watching, not the experiment: exit code 0.

    Args:
        ended: says why the process that should become the driver ended (a Ray job); "" before.
    """
    console = console or screen()
    watch = _watch_live if console.is_terminal else _watch_plainly
    ended = ended or (lambda: "")
    try:
        status = watch(root, name, console, ended)
    except KeyboardInterrupt:
        console.print(
            f"{name} goes on without this terminal. See it: arch-search status {name}; "
            f"end it: arch-search stop {name}",
            highlight=False,
        )
        return 0
    if status.driver in WAITED_FOR:
        console.print(f"the driver never started: {ended()}", style="red", highlight=False)
    return _say_end(root, status, console)


def _watch_live(
    root: Root, name: str, console: Console, ended: Callable[[], str]
) -> ExperimentStatus:
    status = read_status(root, name)
    with Live(status_view(status), console=console, refresh_per_second=4) as live:
        while not _is_over(status, ended):
            time.sleep(0.5)
            status = read_status(root, name)
            live.update(status_view(status))
    return status


def _watch_plainly(
    root: Root, name: str, console: Console, ended: Callable[[], str]
) -> ExperimentStatus:
    said: dict[str, tuple[str, int]] = {}
    while True:
        status = read_status(root, name)
        for run in status.runs:
            mark = (run.state, 10 * run.step // max(run.steps, 1))
            if run.state != "PENDING" and said.get(run.hash) != mark:
                said[run.hash] = mark
                console.print(_line(run), highlight=False, soft_wrap=True)
        if _is_over(status, ended):
            return status
        time.sleep(0.5)


def _is_over(status: ExperimentStatus, ended: Callable[[], str]) -> bool:
    return bool(ended()) if status.driver in WAITED_FOR else not status.is_live


def _say_end(root: Root, status: ExperimentStatus, console: Console) -> int:
    settle(root, [root.run(run.hash) for run in status.runs])
    done = status.count("FINISHED")
    if done == len(status.runs):
        console.print(f"{status.name}: all {done} runs finished", highlight=False)
        return 0
    console.print(
        f"{status.name}: {done} of {len(status.runs)} runs finished; driver {status.driver} "
        f"{status.reason}\ngo on: arch-search resume {status.name}",
        highlight=False,
    )
    for run in status.runs:
        if run.state == "FAILED":
            console.print(f"{run.name}: {run.reason}", style="red", highlight=False)
    return 1


def status_view(status: ExperimentStatus) -> Group:
    """A line for the driver, a row a run, and below them why runs are not well."""
    title = f"{status.name}: driver {status.driver}" + f" ({status.reason})" * bool(status.reason)
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("run", overflow="fold")
    for column in ("state", "step", "", "loss", "tokens/s", "left"):
        right = column in ("tokens/s", "left")
        table.add_column(column, no_wrap=True, justify="right" if right else "left")
    shown = status.runs if len(status.runs) <= ROWS else _most_interesting(status.runs)
    for run in shown:
        table.add_row(
            f"{run.arm}/{run.seed}",
            Text(run.state, style=STYLES.get(run.state, "")),
            f"{run.step}/{run.steps}",
            ProgressBar(total=max(run.steps, 1), completed=run.step, width=16),
            _value(run, "train/loss", ".3f"),
            _value(run, "throughput/tokens_per_second", ",.0f"),
            duration(run.seconds_left),
        )
    notes = [f"{run.arm}/{run.seed}: {run.reason}" for run in shown if run.reason]
    if len(shown) < len(status.runs):
        notes.append(f"and {len(status.runs) - len(shown)} more runs")
    if status.is_live and (left := status.seconds_left) is not None:
        end = time.strftime("%a %H:%M", time.localtime(time.time() + left))
        notes.append(f"expected to have trained in {duration(left)}, {end}, at the present rate")
    if not status.is_live and status.driver not in WAITED_FOR and not _has_ended_well(status):
        notes.append(f"go on: arch-search resume {status.name}")
    if status.tracking:
        notes.append(f"MLflow is behind and will catch up: {status.tracking}")
    return Group(table, *(Text(note) for note in notes))


def _has_ended_well(status: ExperimentStatus) -> bool:
    return status.driver == "FINISHED" and status.count("FINISHED") == len(status.runs)


def duration(seconds: float | None) -> str:
    """'40 s', '12 min', '3 h 05 min' or '2 d 4 h'; empty for None."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def _most_interesting(runs: tuple[RunStatus, ...]) -> list[RunStatus]:
    order = ("RUNNING", "FAILED", "LOST", "KILLED", "PREEMPTED", "FINISHED", "PENDING")
    return sorted(runs, key=lambda run: order.index(run.state))[:ROWS]


def _line(run: RunStatus) -> str:
    loss = _value(run, "train/loss", ".3f")
    speed = _value(run, "throughput/tokens_per_second", ",.0f")
    text = f"{run.name} {run.state} step {run.step}/{run.steps}"
    text += f" loss {loss}" * bool(loss) + f" {speed} tokens/s" * bool(speed)
    text += f" {duration(run.seconds_left)} left" * (run.seconds_left is not None)
    return f"{text} {run.reason}".rstrip()


def _value(run: RunStatus, metric: str, form: str) -> str:
    return format(run.values[metric], form) if metric in run.values else ""
