"""The process that runs an experiment: `python -m arch_search.scheduling.driver --root R --name N`.

It holds the experiment's lock, keeps runs in the air on Ray, and mirrors their journals to MLflow.
All that it knows stands in the storage root, so that another driver can go on where it was killed.
"""

import argparse
import contextlib
import logging
import os
import signal
import sys
import time
from dataclasses import replace

from arch_search import mps
from arch_search.errors import UsageError
from arch_search.files import dump_json, write_once
from arch_search.lease import settle
from arch_search.plan_spec import ArmSpec, Plan
from arch_search.progress import is_done
from arch_search.redaction import hide_secrets
from arch_search.scheduling.dispatch import GRACE_SECONDS, Dispatcher
from arch_search.scheduling.guard import Guard
from arch_search.scheduling.packing import packed_resources
from arch_search.scheduling.presence import Presence
from arch_search.scheduling.ray_folder import clear
from arch_search.scheduling.session import Session, WorkerDied, join, start_local
from arch_search.scheduling.task import EXECUTE
from arch_search.storage import ExperimentFolder, Root
from arch_search.tracking.writer import Writer
from blocks.options import OF_FLA

MAX_RESTARTS = 3  # of Ray, one after the other without any run's progress
CATCH_UP_SECONDS = 60.0  # what MLflow gets to catch up when all runs have ended

MAX_BROKEN = 3  # arms that are found broken before the rest are left to their runs, untried
PREFLIGHT = "arch_search.preflight:preflight"

log = logging.getLogger("arch_search.driver")


def main(arguments: list[str] | None = None) -> int:
    """Run an experiment to its end. Exit code 0: all finished, 1: something failed, 2: misuse."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    _log_without_secrets()
    root = Root(options.root).make()
    folder = root.experiment(options.name)
    try:
        plan = folder.plan()
        presence = Presence(folder, descriptor=options.lock_descriptor)
    except UsageError as error:
        log.error("%s", error)
        return 2
    clear(presence.left_behind)
    settle(root, [root.run(planned.hash) for planned in plan.runs])
    try:
        state, reason = _drive(root, folder, plan, presence, options)
    except Exception as error:
        log.exception("the driver failed")
        reason = hide_secrets(f"{type(error).__name__}: {error}".splitlines()[0])
        state = "FAILED"
    presence.say(state=state, reason=reason, ray_folder="")
    presence.close()
    log.info("%s %s", state, reason)
    return 0 if state == "FINISHED" else 1


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return hide_secrets(super().format(record))


def _log_without_secrets() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="arch_search.scheduling.driver", description=__doc__)
    parser.add_argument("--root", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--address", default="local", help="a Ray cluster to join; local: our own")
    parser.add_argument("--execute", default=EXECUTE, help="what runs a run, as module:function")
    parser.add_argument("--limit", type=int, default=0, help="runs at once; 0: what fits")
    parser.add_argument("--grace", type=float, default=GRACE_SECONDS, help="seconds to stop in")
    inherited = parser.add_argument_group("set when the driver replaces itself")
    inherited.add_argument("--since", type=float, default=time.time())
    inherited.add_argument("--lock-descriptor", type=int)
    inherited.add_argument("--restarts", type=int, default=0)
    inherited.add_argument("--progress", type=int, default=0)
    return parser.parse_args(arguments)


def _drive(
    root: Root,
    folder: ExperimentFolder,
    plan: Plan,
    presence: Presence,
    options: argparse.Namespace,
) -> tuple[str, str]:
    """Run the plan; returns the driver's end state and its reason."""
    writer = Writer(root, plan)
    writer.start()
    try:
        if not is_done(root, plan):
            _run_all(root, folder, plan, presence, options)
            settle(root, [root.run(planned.hash) for planned in folder.plan().runs])
    finally:
        behind = writer.close(CATCH_UP_SECONDS)
    if behind:
        log.warning("MLflow is behind: %s", behind)
    return _outcome(root, folder, plan)


def _outcome(root: Root, folder: ExperimentFolder, plan: Plan) -> tuple[str, str]:
    if plan.sweep is not None:
        if is_done(root, plan):
            return "FINISHED", ""
        return ("STOPPED" if folder.stop.exists() else "FAILED"), "the sweep is not complete"
    done = sum(root.run(p.hash).is_complete(plan.evaluations) for p in plan.runs)
    if done == len(plan.runs):
        return "FINISHED", ""
    count = f"{done} of {len(plan.runs)} runs finished"
    return ("STOPPED" if folder.stop.exists() else "FAILED"), count


def _run_all(
    root: Root,
    folder: ExperimentFolder,
    plan: Plan,
    presence: Presence,
    options: argparse.Namespace,
) -> None:
    _stop_on_sigterm(folder)
    with contextlib.ExitStack() as stack:
        if plan.resources.mps and options.address == "local":
            stack.enter_context(mps.shared_gpu())  # before Ray, whose workers inherit where it is
        elif plan.resources.mps:
            log.warning("resources.mps starts nothing on a cluster that is joined, only here")
        _run_on(root, folder, plan, presence, options)


def _run_on(
    root: Root,
    folder: ExperimentFolder,
    plan: Plan,
    presence: Presence,
    options: argparse.Namespace,
) -> None:
    if options.address == "local":
        session = start_local(say_folder=lambda path: presence.say(ray_folder=path))
    else:
        session = join(options.address)
    with contextlib.closing(session):
        _stop_on_sigterm(folder)  # once more: Ray has put its own handler there
        presence.say(state="RUNNING")
        if session.is_local and not session.capacity(plan.resources):
            asked = f"{plan.resources.cpus:g} CPUs and {plan.resources.gpus:g} GPUs"
            raise UsageError(f"a run asks for {asked}, which this machine does not have")
        plan = replace(plan, resources=packed_resources(session, root, plan))
        _preflight(session, root, plan, options.execute)
        dispatcher = Dispatcher(
            root=root,
            folder=folder,
            plan=plan,
            session=session,
            execute=options.execute,
            since=options.since,
            limit=options.limit,
            grace=options.grace,
        )
        if plan.sweep is not None:
            from arch_search.search.sweep import Sweep  # torch and optuna, for sweeps alone

            dispatcher.supply = Sweep.open(root, folder.frozen_plan())
        guard = Guard(
            session, lambda why: _replace_self(session, dispatcher, presence, options, why)
        )
        guard.start()
        try:
            _keep_going(dispatcher, presence)
        except Exception:
            if session.broken():
                guard.join()  # it replaces this process
            raise
        finally:
            guard.close()


def _preflight(session: Session, root: Root, plan: Plan, execute: str) -> None:
    """Try the arms' kernels where the runs will be: on a GPU, on backends by name, or fla's own.

    An arm whose kernels break is named in the log, and left to its runs; the others go on. Where
    they take the process with them no arm can be named, and all are left to their runs.

    Raises:
        UsageError: they do not work there, or a parameter's start is not as declared.
        RuntimeError: kernels broke, and no arm's worked.
    """
    resources = plan.resources
    kinds = {layer.kind for arm in plan.arms for layer in arm.model.layers}
    of_fla = any(kind.startswith(OF_FLA) for kind in kinds)
    if execute != EXECUTE or not (resources.gpus or resources.backends or of_fla):
        return
    arms, seen, works, broken = _left(root, plan), frozenset[str](), False, ""
    for _ in range(MAX_BROKEN):
        asked = str(root.path), arms, resources, seen
        try:
            checked = session.call(PREFLIGHT, *asked, resources=resources)
        except ValueError as error:
            raise UsageError(f"before any run started: {error}") from None
        except WorkerDied:
            log.warning("trying the arms' kernels crashed; the runs start without, each by itself")
            return
        ran_on = "; ".join(f"{kernel}: {', '.join(on)}" for kernel, on in checked.used.items())
        log.info("kernels: %s", ran_on or "none new")
        seen, works = checked.seen, works or checked.worked > 0
        if checked.broken is None:
            break
        broken = f"tried before any run, {checked.broken}"
        log.warning("%s. Its runs are tried nonetheless", broken)
    if broken and not works:
        raise RuntimeError(f"{broken}; nor did any other that was tried work")


def _left(root: Root, plan: Plan) -> tuple[ArmSpec, ...]:
    """The arms with runs that are not complete; of a sweep all, which it begins with."""
    if plan.sweep is not None:
        return plan.arms
    left = {r.arm for r in plan.runs if not root.run(r.hash).is_complete(plan.evaluations)}
    return tuple(arm for arm in plan.arms if arm.name in left)


def _keep_going(dispatcher: Dispatcher, presence: Presence) -> None:
    stopping = False
    while dispatcher.tick():
        if dispatcher.is_stopping and not stopping:
            stopping = True
            presence.say(state="STOPPING")


def _stop_on_sigterm(folder: ExperimentFolder) -> None:
    asked = dump_json({"state": "PREEMPTED", "reason": "the driver received SIGTERM"})
    signal.signal(signal.SIGTERM, lambda *_: write_once(folder.stop, asked))


def _replace_self(
    session: Session,
    dispatcher: Dispatcher,
    presence: Presence,
    options: argparse.Namespace,
    why: str,
) -> None:
    """Begin anew in this process, with Ray's remains killed and the lock kept.

    A driver cannot leave a cluster whose raylet or GCS died without hanging, or being aborted by
    Ray's core; a new process image has no such past, and keeps its id, so nobody sees it leave.
    """
    log.warning("starting Ray anew")
    session.abandon()
    mps.abandon()
    progress = dispatcher.progress()
    restarts = 1 if progress > options.progress else options.restarts + 1
    if restarts > MAX_RESTARTS:  # the main thread may hang in Ray for a minute: it ends here
        reason = f"Ray died {restarts} times without progress: {why}"
        log.error("%s", reason)
        presence.say(state="FAILED", reason=reason, ray_folder="")
        os._exit(1)
    kept = ["--root", options.root, "--name", options.name, "--address", options.address]
    kept += ["--execute", options.execute, "--limit", str(options.limit)]
    kept += ["--grace", str(options.grace)]
    kept += ["--since", repr(options.since), "--restarts", str(restarts)]
    kept += ["--progress", str(progress), "--lock-descriptor", str(presence.hand_over())]
    os.execv(sys.executable, [sys.executable, "-m", "arch_search.scheduling.driver", *kept])


if __name__ == "__main__":
    try:
        code = main()
    except Exception:
        # A full disk: not even its end can be written, and Python would exit with 120.
        log.exception("the driver failed")
        code = 1
    logging.shutdown()
    os._exit(code)  # Ray's own exit handlers would wait for a cluster that died
