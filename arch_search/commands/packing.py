"""`arch-search bench packing`: what an experiment's runs gain from sharing a device."""

import contextlib
import itertools
import json
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from arch_search.commands.plan import FileArgument, OverridesArgument
from arch_search.errors import UsageError
from arch_search.files import dump_json, write_atomic
from arch_search.kernel_cache import find_tuned
from arch_search.mps import shared_gpu
from arch_search.plan_spec import Plan
from arch_search.storage import Root


def packing(
    file: FileArgument,
    overrides: OverridesArgument = None,
    runs: Annotated[int, typer.Option("--runs", min=2, help="That many at once.")] = 10,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Of each run, a timing.")] = 50,
    rounds: Annotated[int, typer.Option("--rounds", min=2, help="Timings of each kind.")] = 3,
    mps: Annotated[
        bool, typer.Option("--mps", help="Let them compute at the same time, by NVIDIA's MPS.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time runs one after another and all at once, as processes that have started up before.

    Takes the file's runs in order, over again if there are fewer; each gets an equal share of the
    GPU, or a processor if `resources.gpus` is 0.
    """
    from arch_search.planning import make_plan  # imports torch, which other commands do without

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    root = Root().make()
    plan = make_plan(file, root, overrides or [])
    with shared_gpu() if mps else contextlib.nullcontext():
        found = {**_measure(root, plan, runs, steps, rounds), "mps": mps}
    path = _keep(root, plan.name + ("-mps" if mps else ""), found)
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        print(describe(found))
        print(path)


def _measure(root: Root, plan: Plan, count: int, steps: int, rounds: int) -> dict[str, Any]:
    from arch_search.devices import device_for
    from arch_search.throughput.packing import PackedRun, measure_packing

    if not plan.runs:
        raise UsageError(
            f"{plan.name} is a sweep: its runs come while it goes on; name a file of arms"
        )
    resources, tuned = plan.resources, root.path / "tuned"
    if resources.tuned:
        find_tuned(tuned, resources.tuned)
    try:
        device_for(resources)
    except ValueError as error:
        raise UsageError(str(error)) from None
    resources = replace(resources, gpus=1 / count if resources.gpus else 0, packed=False)
    arms = {arm.name: arm for arm in plan.arms}
    packed = [
        PackedRun(
            arm=arms[run.arm],
            seed=i,
            batch=min(resources.micro_batch or run.spec.data.batch, run.spec.data.batch),
            resources=resources,
        )
        for i, run in enumerate(itertools.islice(itertools.cycle(plan.runs), count))
    ]
    try:
        return measure_packing(packed, steps=steps, rounds=rounds, tuned=tuned)
    except RuntimeError as error:
        print(f"arch-search: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


def _keep(root: Root, name: str, found: dict[str, Any]) -> Path:
    path = root.path / "throughput" / f"{name}-packing.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, dump_json(found))
    return path


def describe(found: dict[str, Any]) -> str:
    """The result in a few lines."""
    alone, packed = (
        ", ".join(f"{second:.2f}" for second in found[key])
        for key in ("alone_seconds", "packed_seconds")
    )
    least, most = min(found["parameters"]) / 1e6, max(found["parameters"]) / 1e6
    busy = "" if found["busy"] is None else f"; one alone keeps the GPU {found['busy']:.0%} busy"
    device = found["device"] + (", sharing it by MPS" if found.get("mps") else "")
    return (
        f"{found['runs']} runs of {least:.3g} to {most:.3g} M parameters on {device}, "
        f"{found['steps']} steps each, start-up excluded{busy}.\n"
        f"one after another: {alone} s\nall at once: {packed} s\n"
        f"gain: {found['gain']:.2f} [{found['gain_low']:.2f}, {found['gain_high']:.2f}] "
        f"({found['rounds']} rounds in turn)"
    )
