"""NVIDIA's Multi-Process Service: kernels of several processes on one GPU at the same time.

Without it a GPU gives processes turns: while one computes, the others wait, however little of the
GPU that one fills. With it they share it as streams of one process do. What it costs: processes
share one context on the GPU, so that one which crashes, or is killed amid a kernel, can end the
others (docs.nvidia.com/deploy/mps, "Limitations"). So nothing here is done unasked.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from arch_search.errors import UsageError

PROGRAM = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
PREFIX = "arch-search-mps-"
START_SECONDS, END_SECONDS = 15.0, 10.0


@contextlib.contextmanager
def shared_gpu(environment: MutableMapping[str, str] = os.environ) -> Iterator[Path]:
    """Run a daemon of our own for the processes that are started inside; it ends with the block.

    They find it by `CUDA_MPS_PIPE_DIRECTORY`, which is set meanwhile; a process that has used CUDA
    before is not moved. Where that variable is set already, its daemon is used and left alone.

    Returns:
        the folder of the daemon's pipes.
    Raises:
        UsageError: NVIDIA's program is not here, or does not start.
    """
    if given := environment.get(PIPES):
        yield Path(given)
        return
    program = shutil.which(PROGRAM, path=environment.get("PATH"))
    if program is None:
        raise UsageError(
            f"mps: {PROGRAM} is not on this machine's PATH; it comes with NVIDIA's driver. Leave "
            "mps out to let processes take turns on the GPU"
        )
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        own = {**environment, PIPES: f"{folder}/pipe", LOGS: f"{folder}/log"}
        own.pop("CUDA_VISIBLE_DEVICES", None)  # a daemon that sees fewer GPUs numbers them anew
        for name in (PIPES, LOGS):
            Path(own[name]).mkdir(mode=0o700)
        daemon = subprocess.Popen(
            [program, "-f"], env=own, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _wait_for(daemon, program, own)
            environment[PIPES] = own[PIPES]
            yield Path(own[PIPES])
        finally:
            environment.pop(PIPES, None)
            _end(daemon, program, own)


def abandon(environment: MutableMapping[str, str] = os.environ) -> None:
    """Forget a daemon of ours that was killed with the process's other children."""
    folder = Path(environment.get(PIPES, "/")).parent
    if folder.name.startswith(PREFIX) and folder.parent == Path(tempfile.gettempdir()):
        del environment[PIPES]
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(daemon: subprocess.Popen[bytes], program: str, environment: dict[str, str]) -> None:
    """Until it answers. Raises UsageError if it ends, or is silent."""
    deadline = time.monotonic() + START_SECONDS
    while daemon.poll() is None and time.monotonic() < deadline:
        if _ask(program, "get_server_list", environment):
            return
        time.sleep(0.1)
    said = " ".join(
        path.read_text(errors="replace").strip()[-300:]
        for path in Path(environment[LOGS]).glob("control.log")
    )
    code = daemon.poll()
    how = f"gave no answer within {START_SECONDS:g} s" if code is None else f"ended with {code}"
    raise UsageError(f"mps: {PROGRAM} {how}; it may not be allowed here. {said}".strip())


def _ask(program: str, words: str, environment: dict[str, str]) -> bool:
    """Whether the daemon took a command."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        asked = subprocess.run(
            [program], input=f"{words}\n".encode(), env=environment, capture_output=True,
            timeout=END_SECONDS, check=False,
        )  # fmt: skip
        return asked.returncode == 0
    return False


def _end(daemon: subprocess.Popen[bytes], program: str, environment: dict[str, str]) -> None:
    """Ask it to quit, which ends its servers as well; kill it if it does not."""
    if daemon.poll() is None:
        _ask(program, "quit -t 2", environment)
    for ending in (daemon.terminate, daemon.kill):
        try:
            daemon.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            ending()
    daemon.wait()
