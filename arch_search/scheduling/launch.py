"""Starts an experiment's driver: as a process of its own here, or as a job on a Ray cluster."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace

from arch_search.errors import UsageError
from arch_search.lease import settle
from arch_search.plan_spec import Plan
from arch_search.progress import has_driver, is_done
from arch_search.redaction import hide_secrets
from arch_search.scheduling.session import cpus_here
from arch_search.scheduling.task import EXECUTE
from arch_search.storage import ExperimentFolder, Root
from arch_search.tracking.server import probe, tracking_address
from arch_search.tracking.wandb_sink import require_wandb

START_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """What was started: `job` and `address` name a Ray job; `pid` a process here; or nothing.

    anew: the runs, as arm/seed, whose folder is gone since they were planned.
    """

    pid: int = 0
    job: str = ""
    address: str = ""
    anew: tuple[str, ...] = ()

    @property
    def is_nothing(self) -> bool:
        return not self.pid and not self.job


def launch(
    root: Root, name: str, *, address: str | None = None, limit: int = 0, execute: str = EXECUTE
) -> Launched:
    """Start the driver of an experiment that has a plan, unless nothing is left to do.

    Args:
        address: None runs on this machine; http(s)://head:8265 sends a Ray job; anything else is
            a running cluster that a driver on this machine joins.
        limit: runs at once; 0: as many as the cluster holds.
        execute: what runs a run, as module:function.
    Raises:
        UsageError: a driver works on it already, the cluster cannot be reached, nor can MLflow
            and never could, a run asks for more than this machine has, or the driver did not come
            up.
    """
    folder = root.experiment(name)
    plan = folder.plan()
    settle(root, [root.run(planned.hash) for planned in plan.runs])
    if has_driver(folder):
        raise UsageError(f"{name} is running already; follow it with 'arch-search status {name}'")
    if nothing_left(root, plan):
        return Launched()
    require_what_runs_need(root, plan, here=address is None)
    folder.stop.unlink(missing_ok=True)
    arguments = ["--root", str(root.path), "--name", name, "--execute", execute]
    arguments += ["--limit", str(limit)]
    anew = _without_folder(root, plan)
    if address is not None and address.startswith(("http://", "https://")):
        sent = _send(folder, address, [*arguments, "--address", "auto"], plan)
        return replace(sent, anew=anew)
    return Launched(pid=_detach(folder, [*arguments, "--address", address or "local"]), anew=anew)


def require_what_runs_need(root: Root, plan: Plan, *, here: bool) -> None:
    """Raise UsageError where MLflow or Weights & Biases, or room on this machine, is missing."""
    if not root.experiment(plan.name).read("tracking.json").get("experiment_id"):
        probe(tracking_address(root, plan.tracking_uri))  # once it was there, it may be out
    if plan.wandb_project:
        require_wandb()
    if here:
        _require_room(plan)


def _send(folder: ExperimentFolder, address: str, arguments: list[str], plan: Plan) -> Launched:
    """Send the driver as a job; driver.json says so until that driver writes its own."""
    from arch_search.scheduling.jobs import send
    from arch_search.sources import modules_of  # imports torch, which a driver here does without

    modules = modules_of(plan)
    before = folder.read("driver.json")
    folder.write(
        "driver.json", {"state": "SUBMITTED", "reason": f"as a job to {hide_secrets(address)}"}
    )
    try:
        return Launched(job=send(address, folder.name, arguments, modules), address=address)
    except UsageError:
        folder.write("driver.json", before)
        raise


def _without_folder(root: Root, plan: Plan) -> tuple[str, ...]:
    """Runs that somebody has deleted. A sweep's trials keep their scores, and are not run again."""
    if plan.sweep is not None:
        return ()
    return tuple(f"{p.arm}/{p.seed}" for p in plan.runs if not root.run(p.hash).is_frozen)


def nothing_left(root: Root, plan: Plan) -> bool:
    """Whether all runs and evaluations are done and MLflow has them."""
    behind = root.experiment(plan.name).read("tracking.json").get("behind", "unknown")
    return is_done(root, plan) and not behind


def _require_room(plan: Plan) -> None:
    cpus, gpus = plan.resources.cpus, plan.resources.gpus
    if cpus > cpus_here():
        raise UsageError(
            f"resources.cpus: a run asks for {cpus:g}, this machine has "
            f"{cpus_here()}; ask for fewer or name a cluster with --address"
        )
    if gpus and gpus > (here := _gpus_here()):
        raise UsageError(
            f"resources.gpus: a run asks for {gpus:g}, this machine has {here}; take the file's "
            "form for a CPU if it has one (scale=laptop), set resources.gpus=0, or name a cluster "
            "with --address"
        )


def _gpus_here() -> int:
    import torch  # seconds, which plans without a GPU are spared

    return torch.cuda.device_count()


def _detach(folder: ExperimentFolder, arguments: list[str]) -> int:
    """Start the driver in a session of its own; returns when it holds the lock."""
    with folder.log.open("ab") as output:
        start = folder.log.stat().st_size
        process = subprocess.Popen(
            [sys.executable, "-m", "arch_search.scheduling.driver", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if folder.read("driver.json").get("pid") == process.pid:
            return process.pid
        if process.poll() is not None:
            break
        time.sleep(0.05)
    said = folder.log.read_bytes()[start:].decode(errors="replace").strip().splitlines()
    why = said[-1] if said else f"exit code {process.poll()}"
    raise UsageError(f"the driver of {folder.name} did not start: {why} (see {folder.log})")
