"""The servers start, answer, chart the runs, refuse what they should, and leave nothing behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import closing

import psutil
import pytest

from arch_search.errors import UsageError
from arch_search.records import read_experiment
from arch_search.tracking.mirror import Mirror
from arch_search.tracking.reports import attach_report
from arch_search.tracking.server import tracking_address
from dashboards.pages import charts_url
from dashboards.report import headline, make_report, write_report
from dashboards.ui import running_ui

pytestmark = pytest.mark.services


def free_port() -> int:
    """The first of two free ports in a row."""
    while True:
        with closing(socket.socket()) as one, closing(socket.socket()) as two:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                two.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def get(url: str, host: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(url, headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def ask(url: str, **body) -> dict:
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def test_runs_chart_and_reports_stand_beside_them(planted):
    root = planted(seeds=2, steps=120)
    experiment = read_experiment("planted", root)
    uri = tracking_address(root, experiment.plan.tracking_uri)
    mirror = Mirror(root, experiment.plan, uri)
    mirror.push(driver_lives=False)
    experiment.folder.write("tracking.json", {"uri": uri, "experiment_id": mirror.experiment_id})
    made = make_report(experiment)
    paths = write_report(made, experiment.folder.report)
    assert attach_report(root, experiment.plan, paths, headline(made.comparison)) == ""
    port = free_port()
    with running_ui(root, port) as running:
        family = [running.process.pid]
        family += [p.pid for p in psutil.Process(running.process.pid).children(recursive=True)]
        assert get(running.mlflow_url)[0] == 200
        api = f"{running.mlflow_url}/api/2.0/mlflow"
        found = ask(f"{api}/runs/search", experiment_ids=[mirror.experiment_id], max_results=100)
        curves = [run for run in found["runs"] if run["info"]["run_name"].startswith("planted/")]
        assert len(curves) == 8
        for run in curves:
            metrics = {metric["key"]: metric for metric in run["data"]["metrics"]}
            assert {"train/loss", "val/bits_per_byte"} <= set(metrics)
        one = curves[0]["info"]["run_id"]
        history = get(f"{api}/metrics/get-history?run_id={one}&metric_key=train/loss")[1]
        assert len(json.loads(history)["metrics"]) == 12
        damaged = root.experiment("damaged").path
        damaged.mkdir()
        (damaged / "plan.json").write_text("{")
        index = get(running.pages_url)[1]
        assert "/planted/report.html" in index
        assert "plan.json is damaged" in index
        assert f"{running.mlflow_url}/#/experiments/{mirror.experiment_id}/runs?" in index
        status, page = get(f"{running.pages_url}/planted/report.html")
        assert (status, "Differences to the baseline" in page) == (200, True)
        assert get(f"{running.pages_url}/planted/..%2Fplan.json")[0] == 404
        assert get(f"{running.pages_url}/planted/plan.json")[0] == 404
        assert get(f"{running.pages_url}/nothing/report.html")[0] == 409
        assert get(running.pages_url, host="evil.example")[0] == 403
    assert not [pid for pid in family if psutil.pid_exists(pid) and alive(pid)]


def alive(pid: int) -> bool:
    return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_taken_port_is_refused(tmp_path, planted):
    root = planted(seeds=1)
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} is taken"), running_ui(root, port):
            pass


def test_the_command_stops_on_sigterm_and_takes_mlflow_along(planted):
    root = planted(seeds=1)
    port = free_port()
    code = f"from dashboards.cli import ui; ui(port={port}, browser=False)"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "ARCH_SEARCH_ROOT": str(root.path)},
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(4)]
    assert f"http://127.0.0.1:{port}" in lines[0]
    assert "planted/report.html" in lines[2]
    family = psutil.Process(process.pid).children(recursive=True)
    assert family
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    deadline = time.monotonic() + 10
    while any(p.is_running() for p in family) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_a_missing_extra_is_named(planted, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    root, said = planted(seeds=1), r"pip install -c constraints.txt -e '\.\[ui\]'"
    with pytest.raises(UsageError, match=said), running_ui(root, free_port()):
        pass


def test_charts_are_linked_where_they_are(planted):
    folder = planted(seeds=1).experiment("planted")
    assert charts_url(folder, "http://own") is None
    folder.write("tracking.json", {"uri": "https://me:secret@lab.example/", "experiment_id": "7"})
    link = charts_url(folder, "http://own")
    assert link is not None
    assert link.startswith("https://lab.example/#/experiments/7/")
    folder.write("tracking.json", {"uri": "postgresql://db/mlflow", "experiment_id": "7"})
    assert charts_url(folder, "http://own") is None
