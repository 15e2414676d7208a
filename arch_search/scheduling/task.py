"""What runs inside a Ray worker: one attempt at one run."""

import contextlib
import importlib
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO, cast

from arch_search.attempt import Attempt
from arch_search.errors import UsageError
from arch_search.redaction import HidingStream
from arch_search.run_settings import EvaluationSpec, LogSpec, ResourceSpec
from arch_search.storage import Root

EXECUTE = "arch_search.run_task:execute"


def perform(
    root_path: str,
    run_hash: str,
    experiment: str,
    log: LogSpec,
    resources: ResourceSpec,
    evaluations: tuple[EvaluationSpec, ...],
    execute: str,
    sees_gpus: bool,
) -> dict[str, Any]:
    """Claim the run, execute it, and return the attempt's end. What the run raises stays here."""
    _confine(resources, sees_gpus=sees_gpus)
    root = Root(root_path)
    run = root.run(run_hash)
    attempt = Attempt.claim(
        run,
        experiment=experiment,
        stop_file=root.experiment(experiment).stop,
        keep_checkpoints=log.keep_checkpoints,
    )
    with (
        (attempt.folder.path / "output.txt").open("a", buffering=1) as file,
        contextlib.closing(HidingStream(file)) as output,
        contextlib.redirect_stdout(cast(TextIO, output)),
        contextlib.redirect_stderr(cast(TextIO, output)),
        contextlib.suppress(Exception),  # the attempt has written how it ended
        attempt,
        attempt.stopping_on_sigterm(),
    ):
        body = load(execute)
        _limit_threads(resources)
        spec, missing = run.spec(), run.missing(evaluations)
        body(attempt, spec, log=log, resources=resources, evaluations=missing, root=root)
        if not run.is_complete(evaluations):
            raise RuntimeError(f"{execute} returned without the run's result or evaluations")
    end = attempt.folder.end()
    if end is None:
        raise OSError(f"attempt {attempt.number} could not write how it ended: is the disk full?")
    return {**end, "attempt": attempt.number}


def call(function: str, arguments: tuple[Any, ...]) -> Any:
    """Call `module:function` in this worker; what it logs is kept with the worker's output."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    return load(function)(*arguments)


def load(path: str) -> Callable[..., Any]:
    """The function that an import path names, `package.module:function`."""
    module, _, name = path.partition(":")
    if not name:
        raise UsageError(f"{path!r}: expected package.module:function")
    return getattr(importlib.import_module(module), name)


def _confine(resources: ResourceSpec, *, sees_gpus: bool) -> None:
    """Threads and devices as asked for, set before anything imports torch."""
    os.environ["OMP_NUM_THREADS"] = str(max(1, int(resources.cpus)))
    if not sees_gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def _limit_threads(resources: ResourceSpec) -> None:
    torch = sys.modules.get("torch")  # imported by the run's own code, or not at all
    if torch is not None:
        torch.set_num_threads(max(1, int(resources.cpus)))
