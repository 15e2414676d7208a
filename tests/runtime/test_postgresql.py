"""MLflow on PostgreSQL: made once by many, outages caught up, equal to SQLite."""

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

import pytest
from plans import make_plan, start_driver, wait_for, write
from test_tracking import contents

from arch_search.progress import read_status
from arch_search.redaction import hide_secrets, keep_secret
from arch_search.storage import Root
from arch_search.tracking.server import probe, tracking_address
from arch_search.tracking.writer import rebuild

pytestmark = pytest.mark.services


def program(name: str) -> str:
    """Where Debian puts PostgreSQL's programs, if they are not on the path."""
    found = shutil.which(name)
    if found is None:
        places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
        found = str(places[-1]) if places else ""
    if not found:
        pytest.skip(f"PostgreSQL's {name} is not installed: apt-get install postgresql")
    return found


@dataclass
class Database:
    """A cluster of its own, that can be stopped and started again."""

    folder: Path
    port: int
    password: str

    @property
    def uri(self) -> str:
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/postgres"

    def call(self, name: str, *arguments: str) -> None:
        """PostgreSQL refuses to run as root: there, as the user that Debian makes for it."""
        user = "postgres" if os.getuid() == 0 else None
        subprocess.run([program(name), *arguments], user=user, check=True, cwd=self.folder,
                       stdout=subprocess.DEVNULL, env={"PATH": os.environ["PATH"]})  # fmt: skip

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self.folder} -c fsync=off"
        self.call("pg_ctl", "start", "-w", "-D", f"{self.folder}/data", "-o", options,
                  "-l", f"{self.folder}/log")  # fmt: skip

    def stop(self) -> None:
        self.call("pg_ctl", "stop", "-m", "immediate", "-D", f"{self.folder}/data")


@pytest.fixture(scope="module")
def postgresql() -> Iterator[Database]:
    folder = Path(tempfile.mkdtemp(prefix="as-pg-", dir="/tmp"))  # its socket needs a short path
    if os.getuid() == 0:
        program("initdb")
        shutil.chown(folder, "postgres")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    database = Database(folder, port, secrets.token_hex(12))
    words = folder / "password"
    words.write_text(database.password)
    words.chmod(0o644)
    try:
        database.call("initdb", "-U", "postgres", "-A", "scram-sha-256", f"--pwfile={words}",
                      "-E", "UTF8", "--no-locale", "-N", "-D", f"{folder}/data")  # fmt: skip
        database.start()
        yield database
        database.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_an_empty_database_is_made_once_by_many_and_survives_an_outage(
    postgresql: Database, tmp_path: Path, new_root: Callable[[str], Root]
) -> None:
    probe(postgresql.uri)
    script = f"from arch_search.tracking.server import prepare; prepare({postgresql.uri!r})"
    makers = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(3)]
    assert [maker.wait() for maker in makers] == [0] * 3

    root = new_root("root")
    shown = keep_secret(root.path, postgresql.uri)
    assert shown == hide_secrets(postgresql.uri) != postgresql.uri
    assert tracking_address(root, shown) == postgresql.uri
    plan = make_plan("apart", seeds=(1, 2), steps=60, tracking_uri=shown)
    write(root, plan)
    driver = start_driver(root, "apart", step_seconds=0.1)
    wait_for(lambda: root.experiment("apart").read("tracking.json").get("runs"))
    postgresql.stop()
    wait_for(lambda: read_status(root, "apart").tracking)
    behind = read_status(root, "apart").tracking
    wait_for(lambda: read_status(root, "apart").count("FINISHED") == 2)
    postgresql.start()
    assert driver.wait(120) == 0, root.experiment("apart").log.read_text()
    assert read_status(root, "apart").tracking == ""

    in_sqlite = f"sqlite:///{root.path}/mlflow.db"
    rebuild(root, "apart", in_sqlite)
    there, here = contents(postgresql.uri, "apart"), contents(in_sqlite, "apart")
    assert there == here
    for name in ("apart/only/1", "apart/only/2"):
        status, _, _, histories, artifacts = there[name]
        assert status == "FINISHED"
        assert [step for step, _, _ in histories["train/loss"]] == list(range(1, 61))
        assert artifacts == ["evaluations", "result.json", "spec.json"]
    assert (root.path / "mlartifacts" / "apart").is_dir(), "not in whatever folder is the current"

    assert postgresql.password not in behind
    holding = [p for p in root.path.rglob("*")
               if p.is_file() and postgresql.password.encode() in p.read_bytes()]  # fmt: skip
    assert [p.name for p in holding] == ["credentials.json"]
    assert holding[0].stat().st_mode & 0o777 == 0o600
