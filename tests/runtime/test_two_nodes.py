"""Two Ray nodes on one machine: equal results to one; a node that dies costs little and briefly."""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from plans import environment, make_plan, start_driver, wait_for, write
from test_runtime_faults import outcome
from test_runtime_jobs import free_ports, with_suppressed_kill

from arch_search.lease import is_live
from arch_search.progress import read_status
from arch_search.storage import AttemptFolder, Root

pytestmark = pytest.mark.services

CHECKPOINT_EVERY = 5  # of `make_plan`
STEP_SECONDS = 0.1


@dataclass
class Nodes:
    """A head and a second node, each in a process group, folder and range of ports of its own."""

    home: Path
    address: str
    environment: dict[str, str]
    head: subprocess.Popen[bytes]
    second: subprocess.Popen[bytes]

    def is_on_second(self, attempt: AttemptFolder) -> bool:
        """Whether the attempt's worker is a descendant of the second node."""
        parents = psutil.Process(attempt.lease()["pid"]).parents()
        return self.second.pid in {parent.pid for parent in parents}


def start_node(home: Path, name: str, variables: dict[str, str], *options: str) -> subprocess.Popen:
    names = ["dashboard-agent-listen-port", "dashboard-agent-grpc-port"]
    names += ["metrics-export-port", "runtime-env-agent-port", "node-manager-port"]
    names += ["object-manager-port"]
    ports = [f"--{n}={p}" for n, p in zip(names, free_ports(len(names)), strict=True)]
    ray = str(Path(sys.executable).parent / "ray")
    return subprocess.Popen(
        [ray, "start", "--block", "--num-cpus=2", "--object-store-memory=80000000",
         "--disable-usage-stats", *options, *ports],
        env=variables, stdout=(home / name).open("wb"), stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    home = Path(tempfile.mkdtemp(prefix="as-", dir="/tmp"))  # Ray's sockets need a short path
    token = home / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    variables = {
        **environment(STEP_SECONDS),
        "HOME": str(home),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_scheduler_spread_threshold": "0.0",  # one run on each node, not both on the head
    }
    port, dashboard, client = free_ports(3)
    address = f"127.0.0.1:{port}"
    head = start_node(home, "head", variables, "--head", f"--port={port}",
                      "--include-dashboard=false", f"--dashboard-port={dashboard}",
                      f"--ray-client-server-port={client}", f"--temp-dir={home}/a")  # fmt: skip
    started = [head]
    try:
        wait_for(lambda: b"Ray runtime started" in (home / "head").read_bytes(), 90)
        started.append(start_node(home, "second", variables, f"--address={address}"))
        wait_for(lambda: b"Ray runtime started" in (home / "second").read_bytes(), 90)
        yield Nodes(home, address, variables, *started)
    finally:
        for node in reversed(started):
            kill_node(node)
        shutil.rmtree(home, ignore_errors=True)


def kill_node(node: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the node's every process, its workers included: a power cut."""
    if node.poll() is not None:
        return
    for one in [*psutil.Process(node.pid).children(recursive=True), node]:
        with_suppressed_kill(one)
    node.wait()


def test_a_node_dies_and_its_run_goes_on_elsewhere(
    new_root: Callable[[str], Root], nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = new_root("one"), new_root("two")
    plan = make_plan("nodes", steps=150)
    for root in (one, two):
        write(root, plan)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "HOME"):
        monkeypatch.setenv(name, nodes.environment[name])
    driver = start_driver(two, "nodes", "--address", nodes.address, step_seconds=STEP_SECONDS)

    def running() -> list[AttemptFolder]:
        attempts = [a[-1] for p in plan.runs if (a := two.run(p.hash).attempts())]
        return [a for a in attempts if is_live(a) and len(a.checkpoints()) == 2]

    wait_for(lambda: len(running()) == 2, 120)
    lost = [attempt for attempt in running() if nodes.is_on_second(attempt)]
    assert len(lost) == 1, "one run on each node"
    (attempt,) = lost
    saved = attempt.checkpoints()[-1][0]
    kill_node(nodes.second)
    killed = time.monotonic()
    run = next(two.run(p.hash) for p in plan.runs if attempt.path.is_relative_to(
        two.run(p.hash).path))  # fmt: skip
    wait_for(lambda: len(run.attempts()) == 2 and run.attempts()[1].journal.exists())
    first = run.attempts()[1]
    wait_for(lambda: first.journal.stat().st_size > 0)
    paused = time.monotonic() - killed
    print(f"the run went on {paused:.1f} s after its node was killed")
    assert paused < 15
    assert first.lease()["resumed_from"]["step"] >= saved
    steps = (attempt.end() or {})["step"]
    assert steps - first.lease()["resumed_from"]["step"] <= CHECKPOINT_EVERY
    assert driver.wait(120) == 0, two.experiment("nodes").log.read_text()
    assert read_status(two, "nodes").count("FINISHED") == 2
    assert (attempt.end() or {})["state"] == "LOST"

    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", os.path.expanduser("~root") if os.getuid() == 0 else str(nodes.home))
    assert start_driver(one, "nodes").wait(120) == 0
    assert outcome(one, "nodes") == outcome(two, "nodes")
