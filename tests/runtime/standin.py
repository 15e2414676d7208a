"""A small run in place of a training: it computes, logs, checkpoints and resumes like one.

Its loss is a digest of all steps before: a lost or repeated step shows in every later value.
Faults are chosen by the initial seed.
"""

import functools
import hashlib
import json
import os
import time
from pathlib import Path

from arch_search.attempt import Attempt
from arch_search.errors import Diverged
from arch_search.run_settings import EvaluationSpec, LogSpec, ResourceSpec
from arch_search.spec import RunSpec
from arch_search.storage import Root

DIVERGES, BAD_VALUE, DIES, NEVER_STOPS, HANGS = 901, 902, 903, 904, 905


def execute(
    attempt: Attempt,
    spec: RunSpec,
    *,
    log: LogSpec,
    resources: ResourceSpec,
    evaluations: tuple[EvaluationSpec, ...],
    root: Root,
) -> None:
    started = time.time()
    if attempt.run.result() is None:
        digest = _train(attempt, spec, log)
        attempt.finish(
            {
                "steps": spec.steps,
                "tokens": spec.train.tokens,
                "stream": {"tokens": digest, "text": digest},
                "metrics": {"val/loss": _loss(digest)},
                "environment": {
                    "device": "cpu",
                    "threads": os.environ["OMP_NUM_THREADS"],
                    "visible_gpus": os.environ.get("CUDA_VISIBLE_DEVICES", "all"),
                },
                "started": started,
                "ended": time.time(),
            }
        )
    for evaluation in evaluations:
        attempt.check()
        metrics = {"val/bits_per_byte": 2.0 + spec.init_seed / 1000}
        attempt.run.write_evaluation(evaluation, metrics=metrics, tables={"t": {"x": [1, 2]}})


def _train(attempt: Attempt, spec: RunSpec, log: LogSpec) -> str:
    pause = float(os.environ.get("STANDIN_STEP_SECONDS", "0"))
    step, digest = 0, str(spec.init_seed)
    resumed = attempt.latest_checkpoint()
    if resumed is not None:
        step, digest = resumed[0], json.loads((resumed[1] / "progress.json").read_text())["digest"]
        attempt.event(f"resumed at step {step}")
    while step < spec.steps:
        if spec.init_seed != NEVER_STOPS:
            attempt.check()
        step += 1
        digest = hashlib.sha256(f"{digest} {step}".encode()).hexdigest()
        time.sleep(pause)
        _fail(spec, step, attempt.number)
        attempt.log(step, {"train/loss": _loss(digest), "throughput/tokens_per_second": 1.0})
        if step % log.checkpoint_every == 0 or step == spec.steps:
            attempt.checkpoint(step, functools.partial(_write, digest))
    return digest


def _write(digest: str, folder: Path) -> None:
    (folder / "progress.json").write_text(json.dumps({"digest": digest}))


def _fail(spec: RunSpec, step: int, attempt: int) -> None:
    if spec.init_seed == DIVERGES and step == 7:
        raise Diverged(step, "train/loss")
    if spec.init_seed == BAD_VALUE and step == 7:
        raise ValueError("a shape disagrees")
    if spec.init_seed == DIES and step == 3:
        os._exit(1)
    if spec.init_seed == HANGS and step == 12 and attempt == 1:
        time.sleep(3_600)


def _loss(digest: str) -> float:
    return int(digest[:8], 16) / 2**32 if len(digest) > 8 else 1.0
