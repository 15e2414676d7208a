"""MLflow as a mirror: true, whole, made once, and never in the way."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from plans import make_plan, start_driver, wait_for, write

from arch_search.attempt import Attempt
from arch_search.commands.control import settle_experiment
from arch_search.errors import Stopped, UsageError
from arch_search.plan_spec import Plan
from arch_search.progress import read_status
from arch_search.run_settings import EvaluationSpec
from arch_search.storage import Root
from arch_search.tracking.later import push_evaluations
from arch_search.tracking.reports import attach_report
from arch_search.tracking.server import probe, tracking_address
from arch_search.tracking.writer import Pushes, rebuild

pytestmark = pytest.mark.services


def contents(uri: str, name: str) -> dict[str, Any]:
    """All that MLflow shows of an experiment, without its own ids."""
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(name)
    assert experiment is not None
    shown = {}
    for run in client.search_runs([experiment.experiment_id]):
        histories = {
            key: [
                (m.step, m.timestamp, m.value)
                for m in client.get_metric_history(run.info.run_id, key)
            ]
            for key in run.data.metrics
        }
        artifacts = sorted(a.path for a in client.list_artifacts(run.info.run_id))
        shown[str(run.info.run_name)] = (
            run.info.status, run.data.params, run.data.tags, histories, artifacts
        )  # fmt: skip
    return shown


def run_by_hand(root: Root, plan: Plan, *, first: int, last: int, finish: bool) -> None:
    """An attempt at the first run, without Ray."""
    run = root.run(plan.runs[0].hash)
    with suppress(Stopped), Attempt.claim(run, experiment=plan.name) as attempt:
        for step in range(first, last + 1):
            attempt.log(step, {"train/loss": 1 / step, "val/bits_per_byte": 2.5})
            if step % 5 == 0:
                attempt.checkpoint(step, lambda folder: None)
        if not finish:
            raise Stopped("KILLED", "by a person")
        attempt.finish({"metrics": {"train/final_loss": 0.1}, "stream": {"tokens": "ab"}})
        run.write_evaluation(plan.evaluations[0], metrics={"val/bits_per_byte": 2.0}, tables={})


def test_pushing_twice_resuming_and_rebuilding_agree(new_root: Callable[[str], Root]) -> None:
    root, plan = new_root("root"), make_plan("mirror", seeds=(1,), steps=12)
    write(root, plan)
    run_by_hand(root, plan, first=1, last=7, finish=False)
    uri = tracking_address(root)
    pushes = Pushes(root, plan)
    assert not pushes.try_push(driver_lives=True)
    assert contents(uri, "mirror")["mirror/only/1"][0] == "KILLED"
    losses = contents(uri, "mirror")["mirror/only/1"][3]["train/loss"]
    assert [step for step, _, _ in losses] == [1, 2, 3, 4, 5], "6 and 7 are covered by nothing"

    run_by_hand(root, plan, first=6, last=12, finish=True)
    assert not pushes.try_push(driver_lives=True)
    for _ in range(2):  # a writer that knows nothing of the first, twice
        assert not Pushes(root, plan).try_push(driver_lives=False, ending=True)
    shown = contents(uri, "mirror")
    status, params, tags, histories, artifacts = shown["mirror/only/1"]
    assert status == "FINISHED"
    assert params["layout"] == "attn"
    assert params["count"] == "1"
    assert tags["content_hash"] == plan.runs[0].hash
    assert tags["stream/tokens"] == "ab"
    assert tags["ended"] == "FINISHED"
    assert [step for step, _, _ in histories["train/loss"]] == list(range(1, 13))
    assert histories["val/bits_per_byte"][-1][::2] == (13, 2.0), "the evaluation stands last"
    assert [step for step, _, _ in histories["val/bits_per_byte"]] == list(range(1, 14))
    assert artifacts == ["evaluations", "result.json", "spec.json"]
    assert shown["mirror (summary)"][4] == ["plan.json"]

    other = f"sqlite:///{root.path}/other.db"
    rebuild(root, "mirror", other)
    again = contents(other, "mirror")
    assert again["mirror/only/1"][3] == histories
    assert {k: v[:2] for k, v in again.items()} == {k: v[:2] for k, v in shown.items()}


def test_what_is_evaluated_later_is_shown_too(new_root: Callable[[str], Root]) -> None:
    root, plan = new_root("root"), make_plan("later", seeds=(1,), steps=12)
    write(root, plan)
    run_by_hand(root, plan, first=1, last=12, finish=True)
    hashes, run = {plan.runs[0].hash}, root.run(plan.runs[0].hash)
    assert push_evaluations(root, hashes) == {}, "MLflow has nothing of it yet"
    assert not Pushes(root, plan).try_push(driver_lives=False, ending=True)

    asked = (
        EvaluationSpec(task="newlines"),
        EvaluationSpec(task="perplexity", options={"window": 8}),
    )
    run.write_evaluation(asked[0], metrics={"newlines/loss": 1.5}, tables={})
    run.write_evaluation(asked[1], metrics={"val/bits_per_byte": 2.25}, tables={})
    for _ in range(2):
        assert push_evaluations(root, hashes) == {"later": ""}
    _, _, _, histories, _ = contents(tracking_address(root), "later")["later/only/1"]
    assert [value[::2] for value in histories["newlines/loss"]] == [(12, 1.5)]
    assert [value[::2] for value in histories["val/bits_per_byte window:8"]] == [(12, 2.25)]
    assert histories["val/bits_per_byte"][-1][::2] == (13, 2.0), "the experiment's own stands"

    run.write_evaluation(asked[0], metrics={"newlines/loss": 1.25}, tables={})
    rebuild(root, "later")
    _, _, _, histories, _ = contents(tracking_address(root), "later")["later/only/1"]
    assert [value[::2] for value in histories["newlines/loss"]] == [(12, 1.5), (13, 1.25)]


def test_a_run_whose_folder_was_deleted_is_another_run(new_root: Callable[[str], Root]) -> None:
    root, plan = new_root("root"), make_plan("anew", seeds=(1,), steps=12)
    write(root, plan)
    run_by_hand(root, plan, first=1, last=12, finish=True)
    assert not Pushes(root, plan).try_push(driver_lives=False, ending=True)
    before = root.experiment("anew").read("tracking.json")["runs"]
    shutil.rmtree(root.run(plan.runs[0].hash).path)
    write(root, plan)
    run_by_hand(root, plan, first=2, last=10, finish=True)  # no value at the first and last steps
    assert not Pushes(root, plan).try_push(driver_lives=False, ending=True)
    assert root.experiment("anew").read("tracking.json")["runs"] != before
    shown = contents(tracking_address(root), "anew")["anew/only/1"]
    assert [step for step, _, _ in shown[3]["train/loss"]] == list(range(2, 11))
    assert shown[0] == "FINISHED"


def test_a_report_goes_to_the_summary_run(new_root: Callable[[str], Root], tmp_path: Path) -> None:
    root, plan = new_root("root"), make_plan("told", seeds=(1,), steps=5)
    write(root, plan)
    (tmp_path / "report.html").write_text("<p>so</p>")
    for _ in range(2):
        assert not attach_report(root, plan, [tmp_path / "report.html"], {"only/val/bpb": 2.0})
    (summary,) = contents(tracking_address(root), "told").values()
    assert summary[4] == ["report"]
    assert [value for _, _, value in summary[3]["only/val/bpb"]] == [2.0]


def test_a_dead_drivers_runs_do_not_stay_running(new_root: Callable[[str], Root]) -> None:
    root, plan = new_root("root"), make_plan("orphan", seeds=(1,), steps=12)
    write(root, plan)
    script = f"""
import os, signal
from arch_search.attempt import Attempt
from arch_search.storage import Root
from arch_search.tracking.writer import Pushes
root = Root({str(root.path)!r})
plan = root.experiment("orphan").plan()
attempt = Attempt.claim(root.run(plan.runs[0].hash), experiment="orphan")
attempt.log(1, {{"train/loss": 1.0}})
assert not Pushes(root, plan).try_push(driver_lives=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script], check=False)
    assert contents(tracking_address(root), "orphan")["orphan/only/1"][0] == "RUNNING"
    settle_experiment(root, root.experiment("orphan"))
    status, _, tags, *_ = contents(tracking_address(root), "orphan")["orphan/only/1"]
    assert status == "KILLED"
    assert tags["ended"].startswith("LOST: process")
    assert read_status(root, "orphan").runs[0].state == "LOST"


def test_a_new_database_is_made_once_by_many(tmp_path: Path) -> None:
    uri = tracking_address(Root(tmp_path))
    script = f"from arch_search.tracking.server import prepare; prepare({uri!r})"
    makers = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(3)]
    assert [maker.wait() for maker in makers] == [0] * 3


def test_an_outage_holds_up_no_run_and_is_caught_up(tmp_path: Path) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    uri = f"http://127.0.0.1:{port}"
    root = Root(tmp_path / "root").make()
    plan = make_plan("outage", seeds=(1,), steps=40, tracking_uri=uri)
    write(root, plan)
    driver = start_driver(root, "outage")
    wait_for(lambda: root.run(plan.runs[0].hash).is_complete(plan.evaluations))
    assert "connection refused" in read_status(root, "outage").tracking
    assert driver.poll() is None, "it waits a while for MLflow"
    with server(tmp_path, port):
        assert driver.wait(90) == 0
        shown = contents(uri, "outage")["outage/only/1"]
        assert shown[0] == "FINISHED"
        assert [step for step, _, _ in shown[3]["train/loss"]] == list(range(1, 41))
    assert read_status(root, "outage").tracking == ""


@contextmanager
def server(folder: Path, port: int) -> Iterator[None]:
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{folder}/server.db"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    with (folder / "server.log").open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield
    finally:
        os.killpg(process.pid, 9)
        process.wait()


@pytest.mark.parametrize(
    "uri, said",
    [
        ("http://127.0.0.1:9", "connection refused"),
        ("http://user:secret@127.0.0.1:9", "connection refused"),
        ("sqlite:////proc/nope/mlflow.db", "cannot be written"),
        ("file:///tmp/mlruns", "expected http"),
        ("databrics", "expected http"),
    ],
)
def test_an_unusable_server_is_one_line_before_anything_starts(
    tmp_path: Path, uri: str, said: str
) -> None:
    started = time.monotonic()
    with pytest.raises(UsageError, match=said) as refused:
        probe(tracking_address(Root(tmp_path), uri))
    assert time.monotonic() - started < 20
    assert "\n" not in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_server_that_never_answers_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arch_search.tracking.server.PROBE_SECONDS", 1.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(UsageError, match="no answer within 1 s"):
            probe(f"http://127.0.0.1:{silent.getsockname()[1]}")


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("a text that is no database")
    with pytest.raises(UsageError, match="no SQLite file"):
        probe(tracking_address(Root(tmp_path)))
