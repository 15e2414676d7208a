"""Attempts, journals and leases: fenced, whole after a kill, and true."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from plans import make_plan

from arch_search.attempt import Attempt
from arch_search.errors import Diverged, Fenced, Stopped, UsageError
from arch_search.files import dump_json, write_atomic, write_once
from arch_search.journal import read_curve, read_journal
from arch_search.lease import SILENCE_SECONDS, is_live, settle, this_host
from arch_search.storage import Root, RunFolder

HASH = "0123456789abcdef"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return Root(tmp_path).make().run(HASH)


def write_weights(folder: Path) -> None:
    (folder / "x").write_text("weights")


def advance(attempt: Attempt, steps: range, *, every: int = 5, scale: float = 1.0) -> None:
    for step in steps:
        attempt.log(step, {"train/loss": scale * step})
        if step % every == 0:
            attempt.checkpoint(step, write_weights)


def steps(run: RunFolder, *, durable: bool = True) -> list[int]:
    return [point.step for point in read_curve(run, durable=durable)]


def test_a_curve_is_the_chain_of_attempts_with_one_value_a_step(run: RunFolder) -> None:
    with suppress(Stopped), Attempt.claim(run) as first:
        advance(first, range(1, 8))
        raise Stopped("PREEMPTED", "the machine was taken back")
    assert steps(run) == [1, 2, 3, 4, 5], "steps 6 and 7 can still be taken back"
    assert steps(run, durable=False) == [1, 2, 3, 4, 5, 6, 7]
    with Attempt.claim(run) as second:
        found = second.latest_checkpoint()
        assert found is not None
        assert found[0] == 5
        advance(second, range(6, 12), scale=2.0)
        assert steps(run) == list(range(1, 11))
        second.finish({"steps": 11, "metrics": {}})
    points = read_curve(run)
    assert [p.step for p in points] == list(range(1, 12))
    assert [p.values["train/loss"] for p in points[4:7]] == [5.0, 12.0, 14.0]
    assert [(a.end() or {})["state"] for a in run.attempts()] == ["PREEMPTED", "FINISHED"]


def test_an_attempt_that_never_reached_a_checkpoint_leaves_no_mark(run: RunFolder) -> None:
    for last in (8, 7, 6):
        with suppress(RuntimeError), Attempt.claim(run) as attempt:
            start = attempt.latest_checkpoint()
            advance(attempt, range(start[0] + 1 if start else 1, last))
            raise RuntimeError("out of luck")
    assert steps(run) == [1, 2, 3, 4, 5]
    assert steps(run, durable=False) == [1, 2, 3, 4, 5]
    resumed = [a.lease()["resumed_from"] for a in run.attempts()]
    assert resumed == [None, {"attempt": 1, "step": 5}, {"attempt": 1, "step": 5}]


def test_the_highest_attempt_owns_the_run(run: RunFolder) -> None:
    old, new = Attempt.claim(run), Attempt.claim(run)
    assert (old.number, new.number) == (1, 2)
    for forbidden in (
        old.check,
        lambda: old.checkpoint(1, lambda folder: None),
        lambda: old.finish({}),
    ):
        with pytest.raises(Fenced):
            forbidden()
    new.finish({"steps": 1, "metrics": {}})
    with new:
        pass
    assert (run.result() or {})["attempt"] == 2
    with pytest.raises(Fenced), old:
        old.check_fence()
    assert not run.attempts()[0].checkpoints()
    assert (run.attempts()[0].end() or {})["state"] == "LOST"


def test_claims_at_one_moment_get_numbers_of_their_own(run: RunFolder) -> None:
    script = f"""
import sys
from arch_search.attempt import Attempt
from arch_search.storage import Root
run = Root({str(run.path.parents[1])!r}).run({HASH!r})
sys.stdin.read()
print(*[Attempt.claim(run).number for _ in range(20)])
"""
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.close()
    numbers = [int(n) for w in workers if w.stdout for n in w.stdout.read().split()]
    for worker in workers:
        worker.wait()
    assert sorted(numbers) == list(range(1, 61))


def test_a_torn_or_foreign_line_is_passed_over(run: RunFolder) -> None:
    attempt = Attempt.claim(run)
    advance(attempt, range(1, 4))
    with attempt.folder.journal.open("ab") as file:
        file.write(b'not json\n{"kind": "metrics", "step": 4, "ti')
    records, offset = read_journal(attempt.folder.journal)
    assert [r.step for r in records] == [1, 2, 3]
    with attempt.folder.journal.open("ab") as file:
        file.write(b'me": 1.0, "values": {"train/loss": 4}}\n')
    more, _ = read_journal(attempt.folder.journal, offset)
    assert [(r.step, r.values) for r in more] == [(4, {"train/loss": 4})]


def test_a_checkpoint_cut_short_does_not_count_and_old_ones_go(run: RunFolder) -> None:
    attempt = Attempt.claim(run, keep_checkpoints=2)
    advance(attempt, range(1, 21))
    assert [step for step, _ in attempt.folder.checkpoints()] == [15, 20]

    def torn(folder: Path) -> None:
        (folder / "x").write_text("half")
        raise OSError("no space left")

    with pytest.raises(OSError):
        attempt.checkpoint(25, torn)
    found = Attempt.claim(run).latest_checkpoint()
    assert found is not None
    assert (found[0], (found[1] / "x").read_text()) == (20, "weights")


def test_divergence_is_final_and_durable(run: RunFolder) -> None:
    with suppress(Diverged), Attempt.claim(run) as attempt:
        advance(attempt, range(1, 4))
        raise Diverged(4, "the loss")
    end = run.attempts()[0].end() or {}
    assert (end["state"], end["step"], end["final"]) == ("FAILED", 4, True)
    assert steps(run) == [1, 2, 3]


def test_only_a_dead_holder_is_settled(run: RunFolder) -> None:
    root = Root(run.path.parents[1])
    here = Attempt.claim(run)
    lease = here.folder.path / "lease.json"
    old = 1_000_000_000
    os.utime(lease, (old, old))
    assert settle(root) == [], "a slow beat on this host is no death"
    holder = here.folder.lease()
    write_atomic(lease, dump_json({**holder, "host": "elsewhere#1"}))
    assert is_live(here.folder)
    silent = lease.stat().st_mtime - SILENCE_SECONDS - 5
    os.utime(lease, (silent, silent))
    assert not is_live(here.folder)
    write_atomic(lease, dump_json({**holder, "pid_started": holder["pid_started"] - 100}))
    assert holder["host"] == this_host()
    assert [a.number for a in settle(root)] == [1], "the process id was taken by another process"
    assert settle(root) == []
    with pytest.raises(Fenced):
        here.check_fence()


def test_stop_file_and_its_reason_reach_the_run(run: RunFolder, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    attempt = Attempt.claim(run, stop_file=stop)
    attempt.check()
    write_once(stop, dump_json({"state": "PREEMPTED", "reason": "spot"}))
    attempt._checked = 0.0  # as if half a second had passed
    with pytest.raises(Stopped) as stopped:
        attempt.check()
    assert (stopped.value.state, stopped.value.reason) == ("PREEMPTED", "spot")


@pytest.mark.parametrize("name", ["..", "a/b", "", ".hidden", "x" * 101, "a\nb", "/etc"])
def test_names_cannot_leave_the_root(tmp_path: Path, name: str) -> None:
    root = Root(tmp_path)
    with pytest.raises(UsageError, match="experiment name"):
        root.experiment(name)
    with pytest.raises(ValueError, match="not a run's hash"):
        root.run(name)


def test_roots_that_cannot_hold_locks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="s3://bucket"):
        Root("s3://bucket/runs")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        Root(tmp_path / "file").make()
    assert Root(f"file://{tmp_path}/a%20b").path == tmp_path / "a b"


def test_a_plan_keeps_the_ones_before_it_and_a_frozen_run_stays(tmp_path: Path) -> None:
    root = Root(tmp_path).make()
    folder = root.experiment("two")
    first, second = make_plan("two", steps=5), make_plan("two", steps=6)
    for plan in (first, first, second):
        folder.write_plan(plan)
    assert folder.plan() == second
    assert len(list((folder.path / "plans").iterdir())) == 1
    run = root.run(first.runs[0].hash)
    run.freeze(first.runs[0].spec)
    with pytest.raises(ValueError, match="not the run that its name says"):
        run.freeze(second.runs[0].spec)


def test_readers_stay_free_of_torch_ray_and_mlflow() -> None:
    script = """
import json, sys
import arch_search.attempt, arch_search.commands.control, arch_search.commands.logs
import arch_search.scheduling.driver, arch_search.scheduling.launch, arch_search.tracking.server
print(json.dumps([m for m in ("torch", "ray", "mlflow", "pandas") if m in sys.modules]))
"""
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert json.loads(said.stdout) == []
