"""`arch-search bench throughput`: how fast an experiment's arms are, each in its turn."""

import json
import logging
import sys
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer

from arch_search.commands.plan import FileArgument, OverridesArgument
from arch_search.commands.sweep import read_sweep
from arch_search.errors import UsageError
from arch_search.experiment import load, nearest
from arch_search.kernel_cache import find_tuned
from arch_search.plan_spec import ArmSpec, Plan
from arch_search.search.outcome import front
from arch_search.storage import Root
from arch_search.throughput.record import (
    Record,
    markdown,
    record_path,
    require_record,
)
from arch_search.throughput.settings import ThroughputSpec, cells_of


def throughput(
    file: FileArgument,
    overrides: OverridesArgument = None,
    arms: Annotated[
        str | None, typer.Option("--arms", help="Only these, by comma; ratios are to the first.")
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="In this process; else as a Ray task, alone there.")
    ] = False,
    address: Annotated[
        str | None, typer.Option("--address", help="A running Ray cluster; this machine if not.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep the cells that the record there has.")
    ] = False,
    redraw: Annotated[
        bool, typer.Option("--redraw", help="Only tables and picture of the record that is there.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Training, reading and decoding speed of every arm, memory, FLOPs and MFU.

    The key `throughput` of the file says at which batches and lengths. The arms take turns on a
    device of their own; needs no corpus if `data.vocabulary` is given.
    """
    from arch_search.planning import make_plan  # imports torch, which other commands do without

    root = Root().make()
    spec = load(file, overrides or []).throughput
    plan = make_plan(file, root, overrides or [])
    chosen = _chosen(_with_front(root, plan), arms)
    _check(spec, chosen, plan, str(file))
    if redraw:
        record = require_record(root, plan.name)
    else:
        record = _measure(root, plan, chosen, spec, resume, local=local, address=address)
    written = _write(root, record)
    behind = "" if redraw else _log(root, plan, record, written)
    if as_json:
        print(json.dumps(record, indent=1))
    else:
        print(markdown(record))
        print("\n".join(str(path) for path in (record_path(root, plan.name), *written)))
    if behind:
        print(f"not logged to MLflow: {behind}", file=sys.stderr)
    _tell_failures(record)


def _chosen(plan: Plan, given: str | None) -> tuple[ArmSpec, ...]:
    """The arms that `--arms` names, or all of them without it."""
    if given is None:
        return plan.arms
    known = {arm.name: arm for arm in plan.arms}
    names = [name for name in given.split(",") if name]
    if not names:
        raise UsageError(f"--arms: {given!r} names no arm; there are {', '.join(known)}")
    for name in names:
        if name not in known:
            raise UsageError(f"--arms: no arm is called {name!r}; {nearest(name, list(known))}")
    return tuple(known[name] for name in dict.fromkeys(names))


def _with_front(root: Root, plan: Plan) -> Plan:
    """A sweep with the members of its front as arms, each by its trial's name; others as given.

    Raises UsageError for a sweep without a front.
    """
    if plan.sweep is None:
        return plan
    arms = tuple(
        replace(trial.arm, name=trial.name)
        for trial in front(plan.sweep, read_sweep(root, plan).trials)
    )
    if not arms:
        raise UsageError(
            f"{plan.name} is a sweep without a front so far: submit it first, then measure how "
            "fast the members of its front are"
        )
    return replace(plan, arms=arms)


def _check(spec: ThroughputSpec, arms: tuple[ArmSpec, ...], plan: Plan, where: str) -> None:
    """What would fail after minutes is refused now."""
    data, micro = arms[0].data, plan.resources.micro_batch
    try:
        cells_of(spec, batch=micro or data.batch, length=data.sequence_length)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None


def _measure(
    root: Root,
    plan: Plan,
    arms: tuple[ArmSpec, ...],
    spec: ThroughputSpec,
    resume: bool,
    *,
    local: bool,
    address: str | None,
) -> Record:
    from arch_search.throughput.alone import WHERE, measure_and_keep

    if plan.resources.tuned:
        find_tuned(root.path / "tuned", plan.resources.tuned)
    given = (str(root.path), plan.name, arms, spec)
    try:
        if local:
            logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
            return measure_and_keep(*given, plan.resources, resume)
        from arch_search.scheduling.whole_device import call_alone

        whole = replace(plan.resources, gpus=float(-(-plan.resources.gpus // 1)))
        return call_alone(WHERE, *given, whole, resume, resources=whole, address=address)
    except ValueError as error:  # a worker's comes with its traceback, and has the error as cause
        raise UsageError(str(getattr(error, "cause", error))) from None


def _write(root: Root, record: Record) -> list[Path]:
    """The tables, and the picture where what draws it is installed."""
    table = record_path(root, record["experiment"]).with_suffix(".md")
    table.write_text(markdown(record))
    drawn = [
        entry.load()(record, table.with_suffix(".svg"))
        for entry in entry_points(group="arch_search.pictures", name="throughput")
    ]
    return [table, *drawn]


def _log(root: Root, plan: Plan, record: Record, written: list[Path]) -> str:
    from arch_search.tracking.throughput import log_throughput

    return log_throughput(root, plan, record, [record_path(root, plan.name), *written])


def _tell_failures(record: Record) -> None:
    from arch_search.throughput.lane import failures

    failed = failures(record)
    for line in failed:
        print(f"arch-search: {line}", file=sys.stderr)
    if failed:
        raise typer.Exit(1)
