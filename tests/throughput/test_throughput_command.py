"""`arch-search bench throughput` as a person meets it."""

import functools
import json
import os
import subprocess
import sys

import mlflow
import pytest
import torch

from arch_search.storage import Root
from arch_search.throughput.record import write_record

FEW = (
    "throughput={rounds: 2, steps: 1, contexts: [16, 64], batches: [], prefill: [], "
    "decode: [[1, 32]], decode_tokens: 2}"
)


@pytest.fixture
def command(monkeypatch, cli, tmp_path):
    monkeypatch.setenv("ARCH_SEARCH_ROOT", str(tmp_path))
    return functools.partial(cli, "bench", "throughput")


@pytest.mark.services
def test_arms_are_measured_in_a_worker_alone_kept_drawn_and_logged(file, tmp_path):
    line = [
        sys.executable,
        "-m",
        "arch_search.cli",
        "bench",
        "throughput",
        str(file),
        FEW,
        "--json",
    ]
    environment = {**os.environ, "ARCH_SEARCH_ROOT": str(tmp_path)}
    ran = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr  # in a process of its own: Ray may be imported here
    record = json.loads(ran.stdout)
    kept = tmp_path / "throughput"
    assert json.loads((kept / "small.json").read_text()) == record
    assert "| recurrent |" in (kept / "small.md").read_text()
    assert (kept / "small.svg").read_text().startswith("<svg")
    runs = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = runs.get_experiment_by_name("small-throughput")
    found = {r.data.params["arm"]: r for r in runs.search_runs([experiment.experiment_id])}
    assert set(found) == {"baseline", "recurrent"}
    arm = record["arms"]["recurrent"]
    metrics, run = found["recurrent"].data.metrics, found["recurrent"].info.run_id
    assert metrics["throughput/tokens_per_second"] == arm["tokens_per_second"]
    assert metrics["flops/m2rnn"] == arm["forward_flops_by_part"]["m2rnn"]
    swept = runs.get_metric_history(run, "context/tokens_per_second")
    assert sorted(point.step for point in swept) == [16, 32, 64]
    assert found["recurrent"].data.tags["rankable"] == "true"
    files = runs.list_artifacts(found["baseline"].info.run_id, "throughput")
    assert {f.path.rpartition(".")[2] for f in files} == {"json", "md", "svg"}


BAD = [
    (["throughput={rouns: 2}"], "did you mean 'rounds'"),
    (["throughput={contexts: [48]}"], "48 does not divide 64 tokens"),
    (["throughput={rounds: 1}"], "throughput.rounds"),
    (["--arms", "recurent"], "did you mean 'recurrent'"),
    (["--redraw"], "measure it first"),
    (["resources={packed: true}"], "give the share itself"),
    (["resources.gpus=1.5"], "a share of one"),
    (["--local", "resources.gpus=1"], "torch sees no CUDA device"),
    (["--arms", ","], "--arms: ',' names no arm; there are baseline, recurrent"),
    (["--arms", ""], "names no arm"),
    (["--local", "resources.tuned=nosuch"], "resources.tuned: 'nosuch' is not in"),
]


@pytest.mark.parametrize("arguments, said", BAD, ids=lambda value: str(value)[:30])
def test_what_is_wrong_is_said_in_one_line_before_anything_runs(command, file, arguments, said):
    code, out, err = command(file, *arguments)
    assert code == 2
    assert out == ""
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_record_can_be_drawn_again(command, file, record, tmp_path):
    write_record(Root(tmp_path).make(), record)
    code, out, _ = command(file, "--redraw")
    assert code == 0
    assert "small.svg" in out
    assert (tmp_path / "throughput" / "small.svg").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the backend can run here")
@pytest.mark.parametrize(
    "asked, said",
    [
        ("resources.backends={gated_delta: fla}", "arm baseline: gated_delta cannot run on"),
        ("resources.backends={m2rnn: triton}", "arm recurrent: m2rnn_scan cannot run on"),
        ("resources.tuned=nosuch", "resources.tuned: 'nosuch' is not in"),
    ],
)
def test_what_cannot_run_here_is_one_line_and_the_record_before_stays(
    command, file, record, tmp_path, asked, said
):
    path = write_record(Root(tmp_path).make(), record)
    before = path.read_text()
    code, out, err = command(file, "--local", asked)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert said in err
    assert path.read_text() == before


@pytest.mark.parametrize("flags", [["--redraw"], ["--local", "--resume"]], ids=" ".join)
@pytest.mark.parametrize("wrong", ["[]", "{}", '{"arms": {}}', "a folder"])
def test_a_damaged_record_is_named_in_one_line(command, file, tmp_path, flags, wrong):
    path = tmp_path / "throughput" / "small.json"
    path.parent.mkdir()
    if wrong == "a folder":
        path.mkdir()
    else:
        path.write_text(wrong)
    code, out, err = command(file, *flags)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert f"{path} is damaged" in err


def test_a_cut_record_is_gone_on_with_or_refused_in_a_line(command, file, tmp_path):
    code, _, err = command(str(file), FEW, "--local", "--resume")  # nothing there: from the start
    assert code == 0, err
    kept = tmp_path / "throughput" / "small.json"
    record = json.loads(kept.read_text())
    train = [row for row in record["cells"] if row["kind"] == "train"]
    write_record(Root(tmp_path), {**record, "cells": train})
    code, out, err = command(str(file), FEW, "--local", "--resume")
    assert code == 0, err
    assert "- 3 of 4 cells are of" in out
    cells = json.loads(kept.read_text())["cells"]
    assert (cells[: len(train)], [row["kind"] for row in cells[len(train) :]]) == (
        train,
        ["decode", "decode"],
    )
    code, _, err = command(str(file), FEW.replace("steps: 1", "steps: 2"), "--local", "--resume")
    assert (code, len(err.strip().splitlines())) == (2, 1)
    assert "other settings" in err
