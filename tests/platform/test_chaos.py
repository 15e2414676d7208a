"""Twenty faults at random moments of an ablation of twelve real runs: nothing of them remains.

The seed fixes which fault comes when, counted in checkpointed steps and not in seconds, and whom
it meets; so a failure can be had again. A fault that finds no victim waits until there is one.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from mlflow import MlflowClient

from arch_search.journal import read_curve, read_stream
from arch_search.lease import is_live
from arch_search.planning import make_plan
from arch_search.progress import read_status
from arch_search.scheduling.launch import launch
from arch_search.storage import Root

from .conftest import FIRST, SMALL, run_one

pytestmark = [pytest.mark.services, pytest.mark.slow]

SEED = 20_261
STEPS, SEEDS = 120, 6
FAULTS = {
    "kill worker": 6,
    "suspend worker": 3,
    "kill driver": 3,
    "suspend driver": 2,
    "kill raylet": 2,
    "suspend raylet": 1,
    "kill gcs_server": 1,
    "suspend gcs_server": 1,
    "kill mlflow": 1,
}
SUSPENDED_SECONDS = 1.0
OVERRIDES = (
    *(o for o in SMALL if not o.startswith(("log=", "seeds=", "train.tokens="))),
    f"train.tokens={STEPS * 256}",
    f"seeds={SEEDS}",
    "log={every: 5, checkpoint_every: 10, validate_every: 60, validation_tokens: 1000}",
)


class Server:
    """An MLflow server that can be killed and started again on the same data."""

    def __init__(self, folder):
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        self.uri, self.folder, self.process = f"http://127.0.0.1:{self.port}", folder, None

    def start(self):
        command = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
        command += ["--port", str(self.port), "--backend-store-uri"]
        command += [f"sqlite:///{self.folder}/server.db"]
        command += ["--artifacts-destination", str(self.folder / "artifacts")]
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self):
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def answers(self):
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False


@pytest.fixture
def server(tmp_path, database):
    started = Server(tmp_path)
    (tmp_path / "server.db").write_bytes(database.read_bytes())
    started.start()
    yield started
    started.kill()


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """Making an MLflow database takes seconds: it is made before the server is started."""
    from arch_search.tracking.server import prepare

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    prepare(f"sqlite:///{path}")
    return path


def wait_for(condition, seconds=180.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return found


class Chaos:
    """Meets an experiment with faults; `done` lists them as they came."""

    def __init__(self, root, plan, server):
        self.root, self.plan, self.server = root, plan, server
        self.folder = root.experiment(plan.name)
        self.rng = random.Random(SEED)
        self.done, self.ray_folders = [], set()
        self.struck = set()  # attempts that a kill has met: the next one waits for another

    def run(self):
        kinds = [kind for kind, count in FAULTS.items() for _ in range(count)]
        self.rng.shuffle(kinds)
        total = len(self.plan.runs) * STEPS
        moments = sorted(self.rng.uniform(0.02, 0.85) * total for _ in kinds)
        mlflow_back = len(kinds)
        for number, (kind, moment) in enumerate(zip(kinds, moments, strict=True)):
            wait_for(lambda moment=moment: self.progress() >= moment)
            self.meet(kind)
            self.done.append((kind, self.progress()))
            print(time.strftime("%X"), kind, "at", self.done[-1][1], "of", total, "steps")
            if kind == "kill mlflow":
                mlflow_back = number + 2
            if number >= mlflow_back and self.server.process is None:
                self.server.start()
        if self.server.process is None:
            self.server.start()

    def progress(self):
        latest = [self.root.run(p.hash).latest_checkpoint() for p in self.plan.runs]
        return sum(found[0] for found in latest if found)

    def meet(self, kind):
        verb, whom = kind.split()
        if whom == "mlflow":
            self.server.kill()
            return
        while True:  # the victim may end by itself in this very moment
            process = wait_for(lambda: self.find(whom))
            met = [
                a.path for a in self.live() if whom != "worker" or a.lease()["pid"] == process.pid
            ]
            with suppress(psutil.Error):
                self.struck.update(met if verb == "kill" else ())
                process.send_signal(signal.SIGKILL if verb == "kill" else signal.SIGSTOP)
                break
        if verb == "suspend":
            time.sleep(SUSPENDED_SECONDS)
            with suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)
        elif whom == "driver":
            wait_for(lambda: not process.is_running() or process.status() == "zombie")
            wait_for(lambda: not self.live())
            assert read_status(self.root, self.plan.name).driver == "LOST"
            launch(self.root, self.plan.name)

    def find(self, whom):
        """A process of this kind, or None if there is none yet."""
        with suppress(psutil.Error):
            if whom == "worker":
                found = self.workers()
                return psutil.Process(self.rng.choice(found)) if found else None
            said = self.folder.read("driver.json")
            self.ray_folders |= {said["ray_folder"]} if said.get("ray_folder") else set()
            driver = psutil.Process(said.get("pid", -1))
            if whom == "driver":
                return driver if self.workers() else None
            named = [c for c in driver.children(recursive=True) if c.name() == whom]
            return named[0] if named and self.workers() else None
        return None

    def workers(self):
        return sorted(a.lease()["pid"] for a in self.live() if a.path not in self.struck)

    def live(self):
        attempts = [a[-1] for p in self.plan.runs if (a := self.root.run(p.hash).attempts())]
        return [a for a in attempts if is_live(a)]


def facts(root, plan):
    """All that must not depend on what happened on the way."""
    found = {}
    for planned in plan.runs:
        run = root.run(planned.hash)
        curve = [(p.step, p.values.get("train/loss"), p.values.get("val/subset_bits_per_byte"))
                 for p in read_curve(run)]  # fmt: skip
        scores = []
        for evaluation in plan.evaluations:
            score = run.evaluation(evaluation)
            made = score.pop("made")  # weights, too, are equal to the bit; the time is not
            scores.append((score, made["weights"], made["code"]))
        found[planned.hash] = (run.result()["stream"], curve, read_stream(run), scores)
    return found


@contextmanager
def undisturbed(root, plan):
    """The same runs in this process, while the others are disturbed."""
    failed = []

    def work():
        try:
            for planned in plan.runs:
                run_one(root, plan, planned)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join()
    assert not failed


def test_twenty_faults_leave_no_trace(root, server, tmp_path, monkeypatch):
    calm = Root(tmp_path / "calm").make()
    (calm.path / "data").symlink_to(root.path / "data")
    wait_for(server.answers)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    plan = make_plan(FIRST, root, [*OVERRIDES, f"tracking.uri={server.uri}"])
    assert len(plan.runs) == 12
    root.experiment(plan.name).write_plan(plan)
    for planned in plan.runs:
        root.run(planned.hash).freeze(planned.spec)
    launch(root, plan.name)
    chaos = Chaos(root, plan, server)
    chaos.run()
    assert len(chaos.done) == sum(FAULTS.values()) >= 20
    with undisturbed(calm, plan):
        wait_for(lambda: not read_status(root, plan.name).is_live, 240)

    status = read_status(root, plan.name)
    log = root.experiment(plan.name).log.read_text()
    assert (status.driver, status.tracking, status.count("FINISHED")) == ("FINISHED", "", 12), log
    assert facts(root, plan) == facts(calm, plan)
    attempts = [a for p in plan.runs for a in root.run(p.hash).attempts()]
    ends = Counter(a.end()["state"] for a in attempts)
    assert ends["FINISHED"] == 12
    # A raylet that loses a worker sends it SIGTERM; one that still lives saves and says PREEMPTED.
    assert ends.keys() <= {"FINISHED", "LOST", "PREEMPTED"}
    ended = ends["LOST"] + ends["PREEMPTED"]
    killed = FAULTS["kill worker"]
    services = FAULTS["kill raylet"] + FAULTS["kill gcs_server"] + FAULTS["kill driver"]
    assert killed + services <= ended <= killed + 2 * services + 2 * FAULTS["suspend raylet"]
    for run, before, after in ((root.run(p.hash), a, b) for p in plan.runs
                               for a, b in pairwise(root.run(p.hash).attempts())):  # fmt: skip
        if after.number > run.result()["attempt"]:
            continue  # it was trained; this attempt only evaluated
        saved = before.checkpoints() or ()
        resumed = after.lease()["resumed_from"]
        assert not saved or resumed["step"] >= saved[-1][0], "work behind a checkpoint was lost"

    client = MlflowClient(server.uri)
    experiment = client.get_experiment_by_name(plan.name)
    runs = client.search_runs([experiment.experiment_id])
    assert Counter(r.info.status for r in runs) == {"FINISHED": 13}, "twelve and the summary"
    names = {f"{plan.name}/{p.arm}/{p.seed}": p.hash for p in plan.runs}
    for run in runs:
        if run.info.run_name in names:
            history = client.get_metric_history(run.info.run_id, "train/loss")
            curve = [(p.step, p.values["train/loss"])
                     for p in read_curve(root.run(names[run.info.run_name]))
                     if "train/loss" in p.values]  # fmt: skip
            assert [(m.step, m.value) for m in history] == curve
            assert run.data.tags["ended"] == "FINISHED"
    assert len(chaos.ray_folders) > FAULTS["kill driver"]
    assert not [folder for folder in chaos.ray_folders if Path(folder).exists()]
    commands = [" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])]
    traces = (*chaos.ray_folders, str(root.path))
    assert not [command for command in commands if any(trace in command for trace in traces)]
