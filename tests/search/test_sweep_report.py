"""What a person sees of a sweep: its plan, its front, its report, its study in optuna-dashboard."""

import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from rich.console import Console

from arch_search.commands.compare import compare
from arch_search.commands.plan import show
from arch_search.commands.sweep import describe_sweep, expected_tokens, show_sweep
from arch_search.commands.throughput import _with_front
from arch_search.errors import UsageError
from arch_search.progress import is_done, read_status
from arch_search.search.outcome import change_in_words, front
from arch_search.storage import ROOT_VARIABLE
from arch_search.throughput.alone import measure_and_keep
from arch_search.throughput.settings import ThroughputSpec
from dashboards.sweep_report import make_sweep_report, sweep_headline, write_sweep_report

from .conftest import Stub, submitted

OBJECTIVES = {"val/bits_per_byte": "minimize", "count/state_elements": "minimize"}


@pytest.fixture
def finished(root):
    plan = submitted(root, trials=20, objectives=OBJECTIVES, again={"seeds": 3, "members": 2})
    sweep = Stub(root, plan, room=2).drive()
    return root, plan, sweep.ledger


def test_a_change_on_fresh_seeds_reads_as_it_is():
    assert change_in_words([0.02, 0.03]) == "0.0250 worse"
    assert change_in_words([-0.0358, 0.0]) == "0.0179 better"


def test_the_plan_says_what_the_search_will_cost(root):
    plan = submitted(root, trials=27, immune=0)
    console = Console(width=200, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    show(plan, root, console)
    text = console.export_text()
    assert "Space: 81 points; 27 distinct layouts" in text
    assert "Rung 0: 2,560 tokens" in text
    assert "0 of the 27 trials are never pruned" in text
    counts = [round(count) for count, _, _ in expected_tokens(plan)]
    assert counts == [27, 9, 3]
    tokens = [new for _, _, new in expected_tokens(plan)]
    total = sum(tokens)
    assert total < 1.1 * plan.arms[0].train.tokens, "a trial to the end costs its trunk only once"


def test_the_front_is_shown_with_fresh_seeds(finished):
    root, plan, _ = finished
    told = describe_sweep(root, plan)
    assert json.loads(json.dumps(told))["front"] == told["front"]
    assert {t["state"] for t in told["trials"]} == {"COMPLETE", "PRUNED"}
    assert len(told["second_look"]) == min(2, len(told["front"]))
    assert told["tokens"]["used"] < 0.6 * told["tokens"]["in_full"]
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    show_sweep(root, plan, console)
    text = console.export_text()
    assert "(winner's curse)" in text
    assert all(f"t{number:04d}" in text for number in told["front"])
    assert is_done(root, plan)
    assert {run.state for run in read_status(root, plan.name).runs} == {"FINISHED"}


@pytest.mark.parametrize("option", [{"metric": "val/loss"}, {"parquet": Path("table.parquet")}])
def test_what_a_sweep_has_not_is_refused_not_passed_over(finished, monkeypatch, option):
    root, plan, _ = finished
    monkeypatch.setenv(ROOT_VARIABLE, str(root.path))
    with pytest.raises(UsageError, match="s is a sweep, compared on its objectives"):
        compare(plan.name, **option)


def test_the_report_is_one_page_without_scripts(finished, tmp_path):
    root, plan, ledger = finished
    paths = write_sweep_report(make_sweep_report(root, plan), tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text()
    assert "<script" not in page
    assert not re.search(r'(src|href)="http', page)
    names = {path.name for path in paths}
    assert {"front.svg", "rungs.svg", "importances.svg", "slices.svg", "parallel.svg"} <= names
    for trial in ledger.trials:
        assert trial.name in page
    assert "PRUNED" in page
    assert "Winner" in page
    assert "never pruned" in page
    headline = sweep_headline(root, plan)
    assert headline["sweep/complete"] + headline["sweep/pruned"] == 20
    assert 0 < headline["sweep/token_share"] < 1


def test_a_sweep_that_has_just_begun_can_be_read(root, tmp_path):
    plan = submitted(root, trials=20)
    Stub(root, plan).drive(stop_after=1)
    write_sweep_report(make_sweep_report(root, plan), tmp_path / "report")
    assert not is_done(root, plan)
    assert "not over" in (tmp_path / "report" / "report.html").read_text()


def test_the_speed_of_the_front_is_measured_apart(finished):
    root, plan, ledger = finished
    assert "measured apart" in "".join(make_sweep_report(root, plan).tables[0].columns)
    with_front = _with_front(root, plan)
    assert [arm.name for arm in with_front.arms] == [
        t.name for t in front(plan.sweep, ledger.trials)
    ]
    few = ThroughputSpec(rounds=2, steps=1, contexts=(), batches=(), prefill=(), decode=())
    record = measure_and_keep(str(root.path), plan.name, with_front.arms, few, plan.resources)
    shown = make_sweep_report(root, plan).tables[0].rows
    for row in shown:
        assert f"{record['arms'][row[0]]['tokens_per_second']:,.0f}" in row[-1]


@pytest.mark.services
def test_optuna_dashboard_opens_on_the_same_storage(finished):
    pytest.importorskip("optuna_dashboard")
    root, plan, _ = finished
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command = [sys.executable, "-m", "arch_search.cli", "--root", str(root.path), "study", "s"]
    process = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 150
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/studies") as answer:
                    studies = json.load(answer)["study_summaries"]
                break
            except OSError:
                assert process.poll() is None, "the dashboard ended by itself"
                assert time.monotonic() < deadline
                time.sleep(0.3)
        foreign = urllib.request.Request(
            f"http://127.0.0.1:{port}/api/studies", headers={"Host": "evil.example"}
        )
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(foreign)
        taken = [*command, "--port", str(port)]
        second = subprocess.run(taken, capture_output=True, text=True, check=False)
        assert second.returncode == 2
        assert "choose another with --port" in second.stderr
    finally:
        process.terminate()
        process.wait()
    assert [study["study_name"] for study in studies] == [f"s-{plan.sweep_version[:8]}"]
