"""A storage root with an experiment in it whose true effects are known."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arch_search.plan_spec import ArmSpec, Plan, PlannedRun, PrimarySpec
from arch_search.run_settings import EvaluationSpec, LogSpec, ResourceSpec
from arch_search.scheduling.ray_folder import clear_abandoned
from arch_search.spec import DataSpec, LayerSpec, ModelSpec, RunSpec, TrainSpec
from arch_search.storage import Root, RunFolder

KINDS = {"g": "gated_deltanet", "a": "attention", "m": "m2rnn"}
LAYOUTS = {
    "baseline": ("gdn*3 attn (gdn*3 attn)", "gggaggga", {}),
    "m2rnn-1-first": ("m2rnn gdn*2 attn gdn*3 attn", "mggaggga", {"count": 1, "position": "first"}),
    "m2rnn-1-last": ("gdn*3 attn gdn*2 m2rnn attn", "gggaggma", {"count": 1, "position": "last"}),
    "m2rnn-2-spread": ("gdn m2rnn gdn attn m2rnn gdn*2 attn", "gmgamgga",
                       {"count": 2, "position": "spread"}),
}  # fmt: skip


@dataclass(kw_only=True)
class Planted:
    """What to write: true effects on final bits per byte, noise, and what goes wrong."""

    root: Path
    effects: Mapping[str, float] = field(
        default_factory=lambda: {
            "m2rnn-1-first": -0.06,
            "m2rnn-1-last": 0.0,
            "m2rnn-2-spread": -0.11,
        }
    )
    seeds: int = 5
    noise: float = 0.01
    smallest_effect: float | None = 0.005
    steps: int = 240
    name: str = "planted"
    unlike_stream: Callable[[str, int, int], str] | None = None  # (arm, seed, step) -> another
    failed: frozenset[tuple[str, int]] = frozenset()
    pending: frozenset[tuple[str, int]] = frozenset()
    change_arm: Callable[[ArmSpec], ArmSpec] = lambda arm: arm
    change_spec: Callable[[str, int, RunSpec], RunSpec] = lambda _arm, _seed, spec: spec
    documents: Callable[[str], list[str]] = lambda _arm: ["1905", "1950", "2001"]


EVALUATIONS = (
    EvaluationSpec(task="perplexity", options={}),
    EvaluationSpec(task="loss_by_position", options={"multiple": 8}),
)


def write_planted(planted: Planted) -> Root:
    """Write the root and return it."""
    root = Root(planted.root).make()
    rng = np.random.default_rng(7)
    arms = tuple(planted.change_arm(_arm(name, planted)) for name in LAYOUTS)
    shifts = rng.normal(size=planted.seeds) * 0.03
    runs = []
    for arm in arms:
        for seed in range(planted.seeds):
            spec = RunSpec(model=arm.model, data=arm.data, train=arm.train, init_seed=seed,
                           data_seed=seed, code="c0de")  # fmt: skip
            spec = planted.change_spec(arm.name, seed, spec)
            runs.append(PlannedRun(arm=arm.name, seed=seed, hash=spec.hash, spec=spec))
            value = 2.6 + planted.effects.get(arm.name, 0) + shifts[seed]
            value += rng.normal() * planted.noise
            _write_run(planted, root.run(spec.hash), runs[-1], value, rng)
    plan = Plan(
        name=planted.name,
        question="Does an M²RNN layer help a Gated DeltaNet hybrid, and where should it stand?",
        created="2026-01-01T00:00:00+00:00",
        source="name: planted\n",
        arms=arms,
        runs=tuple(runs),
        primary=PrimarySpec(smallest_effect=planted.smallest_effect),
        evaluations=EVALUATIONS,
        log=LogSpec(),
        resources=ResourceSpec(),
        tracking_uri=f"sqlite:///{root.path}/mlflow.db?timeout=60",
        notes=("Count and position change together: only spread has two layers.",),
    )
    folder = root.experiment(planted.name)
    folder.path.mkdir(parents=True)
    folder.write_plan(plan)
    return root


def _arm(name: str, planted: Planted) -> ArmSpec:
    layout, letters, factors = LAYOUTS[name]
    layers = tuple(LayerSpec(kind=KINDS[x], options={}, mlp_width=128) for x in letters)
    recurrent = letters.count("m")
    return ArmSpec(
        name=name,
        factors=factors,
        layout=layout,
        model=ModelSpec(layers=layers, width=64, vocabulary=257, tie_embeddings=True),
        counts={
            "parameters": 352_640 + 1_024 * recurrent,
            "state_elements": 6_144 - 512 * recurrent,
            "forward_flops_per_token": 812_032.0,
        },
        is_baseline=name == "baseline",
        train=TrainSpec(tokens=planted.steps * 1024),
        data=DataSpec(
            corpus="sotu", tokenizer="bytes", sequence_length=128, batch=8, manifest="ab"
        ),
    )


def _write_run(
    planted: Planted, folder: RunFolder, run: PlannedRun, value: float, rng: np.random.Generator
) -> None:
    key = (run.arm, run.seed)
    folder.freeze(run.spec)
    if key in planted.pending:
        return
    attempt = folder.attempt(1)
    attempt.path.mkdir(parents=True)
    (attempt.path / "lease.json").write_text(json.dumps({"resumed_from": None, "claimed": 99.0}))
    every = range(10, run.spec.steps + 1, 10)
    stop = run.spec.steps // 2 if key in planted.failed else run.spec.steps
    lines = [
        line for step in every if step <= stop for line in _lines(planted, run, step, value, rng)
    ]
    attempt.journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if key in planted.failed:
        attempt.write_end(
            "FAILED", "the loss is nan at step 121", step=stop, time=200.0, final=True
        )
        return
    attempt.write_end("FINISHED", "", step=stop, time=200.0)
    folder.write_result(_result(run, _stream(planted, run, stop)))
    documents = planted.documents(run.arm)
    size = [20_000 + 500 * i for i in range(len(documents))]
    folder.write_evaluation(
        EVALUATIONS[0],
        metrics={"val/bits_per_byte": value},
        tables={"documents": {"document": documents, "bytes": size,
                              "nats": [value * np.log(2) * b for b in size],
                              "bits_per_byte": [value] * len(size)}},
    )  # fmt: skip
    folder.write_evaluation(EVALUATIONS[1], metrics={"position/bits_per_byte_to_8x": value + 0.05},
                            tables={"loss_by_position": _positions(run, value)})  # fmt: skip


def _lines(planted: Planted, run: PlannedRun, step: int, value: float, rng) -> list[dict[str, Any]]:
    level = value + 2.4 * np.exp(-step / 45) + 0.004 * rng.normal()
    at = {"step": step, "time": 100.0 + step}
    metrics = {
        "train/loss": float(level * np.log(2) + 0.03 * rng.normal()),
        "throughput/tokens_per_second": 6_000 + 300 * rng.normal(),
    }
    if step % 30 == 0:
        metrics["val/subset_bits_per_byte"] = float(level)
    return [
        {"kind": "metrics", **at, "values": metrics},
        {"kind": "stream", **at, "tokens": _stream(planted, run, step)},
    ]


def _stream(planted: Planted, run: PlannedRun, step: int) -> str:
    other = planted.unlike_stream and planted.unlike_stream(run.arm, run.seed, step)
    return other or f"{run.spec.data_seed:08x}{step:08x}"


def _result(run: PlannedRun, stream: str) -> dict[str, Any]:
    recurrent = sum(layer.kind == "m2rnn" for layer in run.spec.model.layers)
    return {
        "state": "FINISHED",
        "steps": run.spec.steps,
        "tokens": run.spec.steps * run.spec.data.batch * run.spec.data.sequence_length,
        "stream": {"tokens": stream, "text": f"7e{run.spec.data_seed:06x}"},
        "branch_scales": {"layers.0.mixer": 0.1},
        "metrics": {
            "train/final_loss": 1.8,
            "throughput/tokens_per_second": 6_100.0 - 900 * recurrent + 40 * run.seed,
            "memory/peak_gib": 0.61,
            "train/seconds": 40.0 + 6 * recurrent,
        },
        "environment": {"versions": {"torch": "2.13.0"}, "device": "cpu", "git_commit": "0123abc"},
        "attempt": 1,
        "started": 1_767_225_700.0,
        "ended": 1_767_225_750.0 + 6 * recurrent,
    }


def _positions(run: PlannedRun, value: float) -> dict[str, list[Any]]:
    edges = np.linspace(0, 1024, 65).astype(int)
    middle = (edges[:-1] + edges[1:]) / 2
    forgets = 0.12 if run.arm == "baseline" else 0.03
    bits = value + 0.9 * np.exp(-middle / 60) + forgets * np.maximum(middle - 128, 0) / 896
    bits += 0.01 * np.random.default_rng(run.seed).normal(size=len(bits))
    return {
        "first": edges[:-1].tolist(),
        "last": (edges[1:] - 1).tolist(),
        "bits_per_byte": bits.tolist(),
        "documents": [24] * len(bits),
    }


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Two workers on two cores: more threads would only wait for each other."""
    import torch  # here, since whoever collects tests needs none

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Root:
    """A root for what is prepared once; a test with runs of its own links its data into another."""
    return Root(tmp_path_factory.mktemp("root")).make()


@pytest.fixture
def cli(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process; returns exit code, stdout and stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        from arch_search.cli import main

        monkeypatch.setattr(sys, "argv", ["arch-search", *map(str, arguments)])
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="session", autouse=True)
def no_cluster_left() -> Iterator[None]:
    """The drivers that tests kill leave their Ray's folder to whoever comes next: that is us."""
    yield
    clear_abandoned()


@pytest.fixture
def planted(tmp_path: Path) -> Callable[..., Root]:
    """Write a root in which the effects are known; keywords are `Planted`'s."""

    def write(**changes: Any) -> Root:
        return write_planted(replace(Planted(root=tmp_path / "root"), **changes))

    return write


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small file system can be mounted by root only")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
