"""`status`, `logs`, `stop`, `resume` and the follower, on what real attempts left behind."""

import io
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

import pytest
import typer
from plans import environment, make_plan, start_driver, wait_for, write
from rich.console import Console
from typer.testing import CliRunner

from arch_search.attempt import Attempt
from arch_search.commands.compare import compare
from arch_search.commands.control import resume, status, stop, tell
from arch_search.commands.follow import follow
from arch_search.commands.logs import logs
from arch_search.commands.results import results
from arch_search.errors import UsageError
from arch_search.progress import read_status
from arch_search.scheduling.launch import launch
from arch_search.storage import ROOT_VARIABLE, Root

Invoke = Callable[..., str]


@pytest.fixture
def root(new_root: Callable[[str], Root], monkeypatch: pytest.MonkeyPatch) -> Root:
    """A root with two experiments: one run has failed, one was never started."""
    root = new_root("root")
    monkeypatch.setenv(ROOT_VARIABLE, str(root.path))
    for name in ("small", "other"):
        write(root, make_plan(name, seeds=(1, 2) if name == "small" else (3,), steps=20))
    run = root.run(root.experiment("small").plan().runs[0].hash)
    with suppress(RuntimeError), Attempt.claim(run, experiment="small") as attempt:
        attempt.event("a note")
        for step in range(1, 8):
            attempt.log(step, {"train/loss": 4.0 / step, "throughput/tokens_per_second": 1234.0})
        attempt.log(7, {"val/subset_bits_per_byte": 3.0})
        raise RuntimeError("the fan stopped")
    return root


@pytest.fixture
def invoke() -> Invoke:
    app = typer.Typer(pretty_exceptions_enable=False)
    for command in (status, logs, stop, resume, results, compare):
        app.command()(command)

    def call(*arguments: str) -> str:
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0
        return result.output

    return call


def test_status_in_words_and_json(root: Root, invoke: Invoke) -> None:
    shown = invoke("status", "small")
    for part in ("only/1", "FAILED", "7/20", "0.571", "1,234", "the fan", "only/2", "PENDING"):
        assert part in shown
    read = json.loads(invoke("status", "small", "--json"))
    assert [run["state"] for run in read["runs"]] == ["FAILED", "PENDING"]
    assert read["runs"][0]["values"]["val/subset_bits_per_byte"] == 3.0
    assert "resume" not in shown, "it was never submitted"
    root.experiment("small").write("driver.json", {"state": "FAILED", "reason": "no room"})
    assert "go on: arch-search resume small" in invoke("status", "small")
    every = json.loads(invoke("status", "--json"))
    assert [one["name"] for one in every] == ["other", "small"]
    assert "small" in invoke("status")


@pytest.mark.parametrize("content", ["", "{not json", "[]", '{"name": "small"}'])
def test_a_damaged_plan_is_one_line_hides_no_other_and_can_be_replaced(
    root: Root, invoke: Invoke, content: str
) -> None:
    plan = root.experiment("small").plan()
    file = root.experiment("small").path / "plan.json"
    file.write_text(content)
    for command in ("status", "results", "compare", "resume", "stop"):
        with pytest.raises(UsageError, match=r"plan\.json is damaged, or") as error:
            invoke(command, "small")
        assert "\n" not in str(error.value)
    shown = invoke("status")
    assert "UNREADABLE" in shown
    assert "other" in shown
    assert "submit again" in shown
    assert [one["driver"] for one in json.loads(invoke("status", "--json"))][1] == "UNREADABLE"
    root.experiment("small").write_plan(plan)
    assert root.experiment("small").plan() == plan
    assert content in [path.read_text() for path in (file.parent / "plans").iterdir()]


@pytest.mark.parametrize("name", ["result.json", "attempts/0001/end.json"])
@pytest.mark.parametrize(
    "content",
    [
        '{"state": "FINI',
        "[]",
        "3",
        "{}",
        '{"state": 3, "metrics": {}}',
        '{"state": "FINISHED", "metrics": {"loss": "low"}}',
    ],
)
def test_a_damaged_record_is_one_line_that_names_the_file(
    root: Root, invoke: Invoke, name: str, content: str
) -> None:
    planned = root.experiment("small").plan().runs[0]
    (root.run(planned.hash).path / name).write_text(content)
    with pytest.raises(UsageError, match=f"{planned.hash}/{name} is damaged: .* resume"):
        invoke("status", "small")
    assert "UNREADABLE" in invoke("status")


def test_logs_show_attempts_values_and_the_traceback(root: Root, invoke: Invoke) -> None:
    shown = invoke("logs", "small/only/1")
    assert "attempt 1" in shown
    assert "step 7  train/loss 0.571429" in shown
    assert "a note" in shown
    assert "FAILED at step 7 RuntimeError: the fan stopped" in shown
    assert "Traceback (most recent call last)" in shown
    run_hash = root.experiment("small").plan().runs[0].hash
    assert invoke("logs", run_hash[:8]) == shown


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("status", "smal"), "Did you mean 'small'"),
        (("resume", "nothing"), "there are: other, small"),
        (("stop", "../x"), "experiment name"),
        (("logs", "small/only/9"), "it has only/1, only/2"),
        (("logs", "fffffff"), "no run has a hash"),
    ],
)
def test_what_does_not_exist_is_named(
    root: Root, invoke: Invoke, arguments: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        invoke(*arguments)


def test_stopping_what_is_not_running_says_so(root: Root, invoke: Invoke) -> None:
    assert "not running" in invoke("stop", "small")
    assert not root.experiment("small").stop.exists()


def test_more_than_the_machine_has_is_refused_before_anything_starts(root: Root) -> None:
    write(root, make_plan("huge", cpus=4_096))
    with pytest.raises(UsageError, match=r"resources\.cpus: a run asks for 4096"):
        launch(root, "huge")
    assert not root.experiment("huge").log.exists()


@pytest.mark.services
def test_follow_stop_and_resume(
    root: Root,
    invoke: Invoke,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = f"""
import signal
from arch_search.commands.follow import follow
from arch_search.storage import Root
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
raise SystemExit(follow(Root({str(root.path)!r}), "other"))
"""
    driver = start_driver(root, "other", step_seconds=0.3)
    wait_for(lambda: read_status(root, "other").runs[0].step > 2)
    watcher = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert watcher.stdout is not None
    assert "other/only/3 RUNNING" in watcher.stdout.readline()
    watcher.send_signal(signal.SIGINT)
    said = watcher.stdout.read()
    assert watcher.wait() == 0
    assert "other goes on without this terminal" in said
    assert driver.poll() is None

    assert "other has stopped" in invoke("stop", "other")
    assert driver.wait(30) == 1
    run = read_status(root, "other").runs[0]
    assert run.state == "KILLED"
    assert 2 < run.step < 20

    root.experiment("other").stop.unlink()
    again = start_driver(root, "other")
    wait_for(lambda: read_status(root, "other").is_live)
    output = io.StringIO()
    assert follow(root, "other", console=Console(file=output)) == 0
    assert "other: all 1 runs finished" in output.getvalue()
    assert again.wait(30) == 0

    monkeypatch.setenv("PYTHONPATH", environment(0.0)["PYTHONPATH"])
    shutil.rmtree(root.run(run.hash).path)
    assert read_status(root, "other").runs[0].state == "PENDING"
    launched = launch(root, "other", execute="standin:execute")
    assert tell(root, "other", launched, wait=True, as_json=False) == 0
    assert "other: trained anew, since their folders are gone: only/3" in capsys.readouterr().out
    assert root.run(run.hash).attempts()[-1].number == 1
    assert read_status(root, "other").runs[0].state == "FINISHED"
