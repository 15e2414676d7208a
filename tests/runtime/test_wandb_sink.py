"""Weights & Biases, offline: the same curve as MLflow's, once, and no secret in its files."""

import json
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from plans import make_plan, start_driver, write

from arch_search.attempt import Attempt
from arch_search.errors import Diverged, Stopped
from arch_search.plan_spec import Plan
from arch_search.progress import read_status
from arch_search.storage import Root
from arch_search.tracking.wandb_sink import WandbSink

BLOCK, HEADER = 32_768, 7  # of the log format, LevelDB's, that wandb writes its records in


def payloads(file: Path) -> Iterator[bytes]:
    data, place, begun = file.read_bytes(), HEADER, b""
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        begun += data[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (1, 4):  # whole, or the last part
            yield begun
            begun = b""


def history(file: Path) -> list[tuple[int, dict[str, float]]]:
    from wandb.proto import wandb_internal_pb2 as messages

    rows = []
    for payload in payloads(file):
        record = messages.Record.FromString(payload)
        if record.WhichOneof("record_type") == "history":
            row = {(i.key or "/".join(i.nested_key)): json.loads(i.value_json)
                   for i in record.history.item}  # fmt: skip
            values = {k: v for k, v in row.items() if not k.startswith("_")}
            rows.append((record.history.step.num or row.get("_step"), values))
    return rows


def offline_runs(root: Root) -> list[Path]:
    return sorted((root.path / "wandb").rglob("run-*.wandb"))


def attempt(root: Root, plan: Plan, *, first: int, last: int, end: Exception | None) -> None:
    run = root.run(plan.runs[0].hash)
    with suppress(Stopped, Diverged), Attempt.claim(run, experiment=plan.name) as attempt:
        for step in range(first, last + 1):
            attempt.log(step, {"train/loss": 1 / step})
            if step % 5 == 0:
                attempt.checkpoint(step, lambda folder: None)
        if end is not None:
            raise end
        attempt.finish({"metrics": {"train/final_loss": 0.1}, "stream": {"tokens": "ab"}})
        run.write_evaluation(plan.evaluations[0], metrics={"val/bits_per_byte": 2.0}, tables={})


@pytest.fixture
def root(new_root: Callable[[str], Root], monkeypatch: pytest.MonkeyPatch) -> Root:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567")
    return new_root("root")


@pytest.mark.services
def test_a_run_goes_there_whole_and_once_when_it_has_ended(root: Root) -> None:
    plan = make_plan("beside", seeds=(1,), steps=12, wandb_project="us/hybrids")
    write(root, plan)
    attempt(root, plan, first=1, last=7, end=Stopped("KILLED", "by a person"))
    WandbSink(root, plan).try_push()
    assert not offline_runs(root), "it can still be resumed"
    attempt(root, plan, first=6, last=12, end=None)
    for _ in range(2):
        WandbSink(root, plan).try_push()
    (file,) = offline_runs(root)
    rows = [(step, values["train/loss"]) for step, values in history(file)]
    assert rows == [(step, pytest.approx(1 / step)) for step in range(1, 13)]
    said = b"".join(p.read_bytes() for p in (root.path / "wandb").rglob("*") if p.is_file())
    assert b"beside/only/1" in said
    assert b"val/bits_per_byte" in said
    assert b"0123456789abcdef0123456789abcdef01234567" not in said


@pytest.mark.services
def test_a_diverged_run_is_sent_as_failed_and_an_outage_harms_nothing(
    root: Root, caplog: pytest.LogCaptureFixture
) -> None:
    plan = make_plan("diverged", seeds=(1,), steps=12, wandb_project="hybrids")
    write(root, plan)
    attempt(root, plan, first=1, last=4, end=Diverged(5, "the loss"))
    place = root.path / "wandb"
    place.write_text("in the way")
    WandbSink(root, plan).try_push()
    place.unlink()
    assert "W&B does not take the runs" in caplog.text
    WandbSink(root, plan).try_push()
    (file,) = offline_runs(root)
    assert [step for step, _ in history(file)] == [1, 2, 3, 4]
    assert b"the loss is not finite at step 5" in file.read_bytes()


@pytest.mark.services
def test_a_driver_sends_its_runs_beside_mlflow(root: Root) -> None:
    plan = make_plan("driven", seeds=(1, 2), steps=12, wandb_project="hybrids")
    write(root, plan)
    assert start_driver(root, "driven").wait(120) == 0
    assert len(offline_runs(root)) == 2
    assert set(root.experiment("driven").read("wandb.json")) == {p.hash for p in plan.runs}
    assert read_status(root, "driven").tracking == ""
