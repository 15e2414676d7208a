"""The same driver as a Ray job, on a cluster that wants a token."""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from plans import environment, make_plan, wait_for, write
from ray._private.authentication_test_utils import reset_auth_token_state

from arch_search.errors import UsageError
from arch_search.planning import make_plan as make_plan_of_file
from arch_search.progress import read_status
from arch_search.scheduling.jobs import ended, log
from arch_search.scheduling.launch import launch
from arch_search.scheduling.source_folder import SENT, source_folder
from arch_search.storage import Root

pytestmark = pytest.mark.services


@dataclass(frozen=True)
class Cluster:
    address: str
    token: Path


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head node of our own: private home, folder and ports, so that no other Ray is touched."""
    home = Path(tempfile.mkdtemp(prefix="as-", dir="/tmp"))  # Ray's sockets need a short path
    token = home / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    names = ["port", "dashboard-port", "ray-client-server-port", "dashboard-agent-listen-port"]
    names += ["dashboard-agent-grpc-port", "metrics-export-port", "runtime-env-agent-port"]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    scripts = str(Path(sys.executable).parent)
    process = subprocess.Popen(
        [f"{scripts}/ray", "start", "--head", "--block", "--num-cpus=2", f"--temp-dir={home}/ray"]
        + [f"--{name}={port}" for name, port in ports.items()]
        + ["--object-store-memory=100000000", "--disable-usage-stats"],
        env={
            **environment(0.02),
            "HOME": str(home),
            "PATH": scripts + os.pathsep + os.environ["PATH"],
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
        },
        stdout=(home / "output").open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    yield Cluster(address=f"http://127.0.0.1:{ports['dashboard-port']}", token=token)
    left = [process, *psutil.Process(process.pid).children(recursive=True)]
    for one in left:
        with_suppressed_kill(one)
    process.wait()
    shutil.rmtree(home, ignore_errors=True)


def with_suppressed_kill(process: "subprocess.Popen[bytes] | psutil.Process") -> None:
    try:
        process.kill()
    except (psutil.Error, ProcessLookupError):
        return


@pytest.fixture
def authorised(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(cluster.token))
    reset_auth_token_state()  # Ray remembers the mode that an earlier test of this process chose
    wait_for(lambda: is_up(cluster), 90)
    return cluster


def is_up(cluster: Cluster) -> bool:
    from ray.job_submission import JobSubmissionClient

    try:
        JobSubmissionClient(cluster.address).list_jobs()
    except (RuntimeError, ConnectionError):
        return False
    return True


def test_an_experiment_runs_as_a_job(new_root: Callable[[str], Root], authorised: Cluster) -> None:
    root, plan = new_root("root"), make_plan("job", steps=60)
    write(root, plan)
    sent = launch(root, "job", address=authorised.address, execute="standin:execute")
    assert sent.job == "job-1"
    with pytest.raises(UsageError, match="running already"):
        launch(root, "job", address=authorised.address, execute="standin:execute")
    wait_for(lambda: ended(authorised.address, sent.job), 90)
    assert ended(authorised.address, sent.job).startswith("SUCCEEDED"), log(
        authorised.address, sent.job
    )
    status = read_status(root, "job")
    assert (status.driver, status.count("FINISHED")) == ("FINISHED", 2)
    token = authorised.token.read_text()
    written = [p for p in root.path.rglob("*") if p.is_file() and token.encode() in p.read_bytes()]
    assert not written
    assert token not in log(authorised.address, sent.job)


FILE = """
defaults: [task]
name: outside
model: {pattern: my_package.my_file:Mine, width: 8, mlp: {width: 8}, tie_embeddings: false}
baseline: {}
data: {task: {state_tracking: {group: Z2}}, sequence_length: 8, batch: 4}
train: {tokens: 64}
seeds: 1
log: {checkpoint_every: 2, validate_every: 2, validation_tokens: 64}
evaluate: [{task: {items: 8}}]
"""


@pytest.fixture
def own_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with the block of the documentation, importable here and not on the cluster."""
    folder = tmp_path / "mine" / "my_package"
    folder.mkdir(parents=True)
    text = (Path(__file__).parents[2] / "docs" / "adding-a-block.md").read_text()
    (folder / "leaky.py").write_text(text.split("```python\n")[1].split("```")[0])
    (folder / "my_file.py").write_text(
        "from pathlib import Path\n\nfrom my_package.leaky import LeakyAverage\n\n\n"
        "class Mine(LeakyAverage):\n    summary = Path(__file__).with_name('words').read_text()\n"
    )
    (folder / "words").write_text("beside it")
    monkeypatch.syspath_prepend(str(folder.parent))
    return folder


def test_a_block_from_outside_goes_along_with_the_job(
    tmp_path: Path, new_root: Callable[[str], Root], authorised: Cluster, own_block: Path
) -> None:
    root, file = new_root("root"), tmp_path / "outside.yaml"
    file.write_text(FILE)
    plan = make_plan_of_file(file, root)
    write(root, plan)
    sent = launch(root, "outside", address=authorised.address)
    wait_for(lambda: ended(authorised.address, sent.job), 90)
    said = log(authorised.address, sent.job)
    assert ended(authorised.address, sent.job).startswith("SUCCEEDED"), said
    assert read_status(root, "outside").count("FINISHED") == 1


def test_what_a_job_takes_along(own_block: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package, linked whole; what pip installed is on the cluster, or is not to be sent."""
    with source_folder(["my_package.my_file", "blocks.gru", "yaml"]) as folder:
        names = {path.name for path in folder.iterdir()}
        assert (folder / "my_package" / "words").read_text() == "beside it"
    assert names == {*SENT, "my_package"}
    assert not folder.exists()
    monkeypatch.setattr("arch_search.scheduling.source_folder.LARGEST_BYTES", 100)
    with pytest.raises(UsageError, match="my_package holds more than 0 MiB"):
        source_folder(["my_package.my_file"]).__enter__()


def test_a_wrong_token_and_a_dead_address_are_one_line(
    new_root: Callable[[str], Root], authorised: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, plan = new_root("root"), make_plan("job", steps=5)
    write(root, plan)
    (port,) = free_ports(1)
    with pytest.raises(UsageError, match="no Ray cluster answers at") as dead:
        launch(root, "job", address=f"http://127.0.0.1:{port}")
    assert "\n" not in str(dead.value)
    script = f"""
from arch_search.errors import UsageError
from arch_search.scheduling.launch import launch
from arch_search.storage import Root
try:
    launch(Root({str(root.path)!r}), "job", address={authorised.address!r})
except UsageError as error:
    print(error)
"""
    changed = {**os.environ, "RAY_AUTH_TOKEN": "0" * 64, "RAY_AUTH_MODE": "token"}
    changed.pop("RAY_AUTH_TOKEN_PATH")
    said = subprocess.run(
        [sys.executable, "-c", script], env=changed, capture_output=True, text=True, check=False
    )
    assert "refused us" in said.stdout, said.stderr
    assert len(said.stdout.splitlines()) == 1
    assert read_status(root, "job").driver == "NONE"
