"""Plans and drivers for the tests of the runtime."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from arch_search.plan_spec import ArmSpec, Plan, PlannedRun, PrimarySpec
from arch_search.run_settings import EvaluationSpec, LogSpec, ResourceSpec
from arch_search.spec import DataSpec, LayerSpec, ModelSpec, RunSpec, TrainSpec
from arch_search.storage import Root

HERE = Path(__file__).parent


def make_plan(
    name: str,
    *,
    seeds: tuple[int, ...] = (1, 2),
    steps: int = 40,
    cpus: float = 1,
    tracking_uri: str = "",
    stall_seconds: float = 1_800,
    wandb_project: str = "",
    evaluations: tuple[EvaluationSpec, ...] = (EvaluationSpec(task="perplexity"),),
) -> Plan:
    """One arm, one run for each seed."""
    layer = LayerSpec(kind="attention", options={"heads": 2}, mlp_width=8)
    model = ModelSpec(layers=(layer,), width=8, vocabulary=256, tie_embeddings=True)
    data = DataSpec(corpus="sotu", tokenizer="bytes", sequence_length=8, batch=1)
    train = TrainSpec(tokens=8 * steps)
    arm = ArmSpec(
        name="only",
        factors={"count": 1},
        layout="attn",
        model=model,
        counts={},
        is_baseline=True,
        train=train,
        data=data,
    )
    specs = [
        RunSpec(model=model, data=data, train=train, init_seed=s, data_seed=s, code="c0de")
        for s in seeds
    ]
    return Plan(
        name=name,
        question="does it run?",
        created="2026-01-01T00:00:00+00:00",
        source="",
        arms=(arm,),
        runs=tuple(PlannedRun(arm="only", seed=s.init_seed, hash=s.hash, spec=s) for s in specs),
        primary=PrimarySpec(),
        evaluations=evaluations,
        log=LogSpec(every=1, checkpoint_every=5),
        resources=ResourceSpec(cpus=cpus, stall_seconds=stall_seconds),
        tracking_uri=tracking_uri,
        wandb_project=wandb_project,
    )


def write(root: Root, plan: Plan) -> None:
    root.make().experiment(plan.name).write_plan(plan)
    for planned in plan.runs:
        root.run(planned.hash).freeze(planned.spec)


def start_driver(
    root: Root, name: str, *options: str, step_seconds: float = 0.0
) -> subprocess.Popen[bytes]:
    """The driver as its own process, running the stand-in."""
    command = [sys.executable, "-m", "arch_search.scheduling.driver", "--name", name]
    command += ["--root", str(root.path), "--execute", "standin:execute", *options]
    with root.experiment(name).log.open("ab") as log:
        return subprocess.Popen(command, env=environment(step_seconds), stdout=log, stderr=log)


def environment(step_seconds: float) -> dict[str, str]:
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "STANDIN_STEP_SECONDS": str(step_seconds)}


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)
