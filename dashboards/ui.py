"""MLflow's own server on the root's database, with the report pages beside it."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from arch_search.errors import UsageError
from arch_search.extras import how_to_install
from arch_search.storage import Root
from arch_search.tracking.server import prepare, tracking_address
from dashboards.pages import PageServer

START_SECONDS = 90.0
STOP_SECONDS = 10.0
_ENVIRONMENT = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # seven idle processes otherwise
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """The two addresses, and MLflow's process."""

    mlflow_url: str
    pages_url: str
    process: subprocess.Popen[bytes]


@contextmanager
def running_ui(root: Root, port: int) -> Iterator[Running]:
    """Start both servers on 127.0.0.1, MLflow at `port` and the pages at the next; stop both.

    Raises:
        UsageError: the ui extra is missing or a port is taken.
        RuntimeError: MLflow did not start; the message ends with what it printed.
    """
    if importlib.util.find_spec("flask") is None or importlib.util.find_spec("uvicorn") is None:
        raise UsageError(f"the MLflow server is not installed; {how_to_install('ui')}")
    _require_free(port)
    root.make()
    uri = tracking_address(root)
    prepare(uri)
    url = f"http://127.0.0.1:{port}"
    try:
        pages = PageServer(root, port + 1, url)
    except OSError:
        raise _taken(port + 1) from None
    with pages, tempfile.TemporaryFile() as output:
        threading.Thread(target=pages.serve_forever, name="pages", daemon=True).start()
        process = _start(root, uri, port, output)
        try:
            _await(process, url, output)
            yield Running(mlflow_url=url, pages_url=pages.url, process=process)
        finally:
            _stop(process)
            pages.shutdown()


def _start(root: Root, uri: str, port: int, output: IO[bytes]) -> subprocess.Popen[bytes]:
    artifacts = (root.path / "mlartifacts").as_uri()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port),
               "--workers", "1", "--backend-store-uri", uri,
               "--artifacts-destination", artifacts]  # fmt: skip
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**os.environ, **_ENVIRONMENT},
        start_new_session=True,  # its worker processes end with it, and Ctrl-C reaches us alone
    )


def _await(process: subprocess.Popen[bytes], url: str, output: IO[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    output.seek(0)
    said = output.read().decode(errors="replace").strip().splitlines()[-5:]
    raise RuntimeError("MLflow's server did not start; it said last:\n" + "\n".join(said))


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the whole process group: first asked to, then made to."""
    for signal_, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
        try:
            os.killpg(process.pid, signal_)
        except ProcessLookupError:
            break
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
    process.poll()


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise _taken(port) from None


def _taken(port: int) -> UsageError:
    return UsageError(f"port {port} is taken; choose another with --port (it takes two in a row)")
