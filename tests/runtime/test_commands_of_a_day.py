"""`doctor`, `results`, `rebuild`, `logs --json`, rates and expected ends, completion."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from plans import make_plan, write

from arch_search.attempt import Attempt
from arch_search.cli import make_app
from arch_search.commands.follow import duration, status_view
from arch_search.progress import ExperimentStatus, RunStatus, read_status
from arch_search.storage import ROOT_VARIABLE, Root

Invoke = Callable[..., tuple[int, str, str]]


@pytest.fixture
def invoke(cli: Invoke) -> Invoke:
    return cli


@pytest.fixture
def root(planted: Callable[..., Root], monkeypatch: pytest.MonkeyPatch) -> Root:
    made = planted(seeds=2, steps=60, failed=frozenset({("m2rnn-1-last", 1)}))
    monkeypatch.setenv(ROOT_VARIABLE, str(made.path))
    return made


def test_results_as_table_json_parquet_and_csv(root: Root, invoke: Invoke, tmp_path: Path) -> None:
    code, out, _ = invoke("results", "planted", "--json")
    rows = json.loads(out)
    assert (code, len(rows)) == (0, 8)
    failed = [row for row in rows if row["state"] == "FAILED"]
    assert [(row["arm"], row["seed"], row["val/bits_per_byte"]) for row in failed] == [
        ("m2rnn-1-last", 1, None)
    ]
    for option, read in (("--parquet", pd.read_parquet), ("--csv", pd.read_csv)):
        file = tmp_path / f"runs{option}"
        assert invoke("results", "planted", option, file) == (0, "", "")
        frame = read(file)
        assert list(frame["arm"]) == [row["arm"] for row in rows]
        values = [row["val/bits_per_byte"] for row in rows]
        assert frame["val/bits_per_byte"].tolist() == pytest.approx(
            [float("nan") if v is None else v for v in values], nan_ok=True
        )
    curve = tmp_path / "curve.parquet"
    assert invoke("results", "planted", "--curves", "--parquet", curve)[0] == 0
    assert {"train/loss", "val/subset_bits_per_byte"} <= set(pd.read_parquet(curve)["metric"])
    assert "m2rnn-2-spread" in invoke("results", "planted")[1]
    code, _, err = invoke("results", "planted", "--parquet", tmp_path / "no" / "where")
    assert (code, len(err.splitlines())) == (2, 1)


def test_logs_as_json_hold_every_record(root: Root, invoke: Invoke) -> None:
    _, out, _ = invoke("logs", "planted/baseline/0", "--json")
    records = [json.loads(line) for line in out.splitlines()]
    assert {record["kind"] for record in records} == {"metrics", "stream"}
    assert [r["step"] for r in records if r["kind"] == "stream"] == list(range(10, 61, 10))
    assert {record["attempt"] for record in records} == {1}


@pytest.mark.services
def test_rebuild_fills_an_mlflow_from_the_root(
    root: Root, invoke: Invoke, database: Path, tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    file = tmp_path / "other.db"
    file.write_bytes(database.read_bytes())
    for _ in range(2):
        code, out, err = invoke("rebuild", "planted", "--uri", f"sqlite:///{file}", "--json")
        assert (code, json.loads(out)["runs"]) == (0, 8), err
    client = MlflowClient(f"sqlite:///{file}")
    experiment = client.get_experiment_by_name("planted")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert sorted(r.info.status for r in runs) == ["FAILED"] * 2 + ["FINISHED"] * 7
    code, _, err = invoke("rebuild", "planted", "--uri", "http://me:word123@127.0.0.1:9")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "word123" not in err


def test_doctor_says_in_one_screen_what_is_there(
    root: Root, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ROOT_VARIABLE, str(root.path / "deep" / ("long" * 30)))
    monkeypatch.setattr(sys, "executable", f"/where/{'long' * 30}/python3")
    code, out, err = invoke("doctor")
    assert (code, err) == (0, "")
    assert len(out.splitlines()) <= 24
    assert re.search(r"at /where/long\w*…\w*/python3", out)
    for what in ("python", "torch", "triton", "fla", "mamba-ssm", "ray", "mlflow", "disk", "git"):
        assert what in out
    code, out, _ = invoke("doctor", "--json", "--tracking", "http://me:word123@127.0.0.1:9")
    found = {one["what"]: one for one in json.loads(out)}
    assert code == 1
    assert found["MLflow reached"]["state"] == "bad"
    assert "connection refused" in found["MLflow reached"]["found"]
    assert "word123" not in out
    monkeypatch.setenv(ROOT_VARIABLE, "/proc/nope")
    code, out, _ = invoke("doctor", "--json")
    assert {one["what"]: one["state"] for one in json.loads(out)}["storage root"] == "bad"


def test_every_command_that_lists_takes_json() -> None:
    from typer.main import get_command

    commands = get_command(make_app()).commands  # type: ignore[attr-defined]
    without = {
        name
        for name, command in commands.items()
        if not any("--json" in option.opts for option in command.params)
    }
    groups_and_servers = {"ui", "study", "data", "bench"}  # their commands take it, or list nothing
    assert without <= groups_and_servers, without


@pytest.mark.parametrize("words, offered", [("compa", "compare"), ("status pla", "planted")])
def test_the_shell_completes_commands_and_experiments(root: Root, words: str, offered: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from arch_search.cli import main; main()"],
        env={
            **os.environ,
            "_ARCH_SEARCH_COMPLETE": "complete_bash",
            "COMP_WORDS": f"arch-search {words}",
            "COMP_CWORD": str(len(words.split())),
        },
        capture_output=True,
        text=True,
    )
    assert offered in done.stdout.split(), done.stderr


def test_a_running_run_says_its_rate_and_when_it_will_end(tmp_path: Path) -> None:
    root, plan = Root(tmp_path).make(), make_plan("rates", seeds=(1, 2), steps=40)
    write(root, plan)
    attempt = Attempt.claim(root.run(plan.runs[0].hash), experiment="rates")
    begin = time.time() - 30
    lines = [{"kind": "metrics", "step": s, "time": begin + 3 * s, "values": {"train/loss": 1.0}}
             for s in range(1, 11)]  # fmt: skip
    attempt.folder.journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    status = read_status(root, "rates")
    assert status.runs[0].seconds_a_step == pytest.approx(3)
    assert status.runs[0].seconds_left == pytest.approx(90)
    assert status.runs[1].seconds_left is None
    assert status.seconds_left == pytest.approx(3 * (30 + 40))
    attempt.end("KILLED", "")
    assert read_status(root, "rates").seconds_left is None


def test_durations_read_like_speech() -> None:
    said = [duration(s) for s in (None, 12.4, 600, 3 * 3600 + 300, 52 * 3600)]
    assert said == ["", "12 s", "10 min", "3 h 05 min", "2 d 4 h"]
    run = RunStatus(name="a/b/1", arm="b", seed=1, hash="ab", state="RUNNING", reason="",
                    attempts=1, step=5, steps=10, values={}, seconds_a_step=2.0,
                    seconds_left=10.0)  # fmt: skip
    status = ExperimentStatus(name="a", driver="RUNNING", reason="", tracking="", runs=(run,))
    notes = [str(part) for part in status_view(status).renderables]
    assert any("expected to have trained in 10 s" in note for note in notes)
