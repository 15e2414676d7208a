"""A Ray cluster of our own on this machine, or one that is joined.

Ray is imported inside the functions: it reads its environment when it is imported.
"""

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from arch_search.errors import UsageError
from arch_search.lease import process_lives, this_host
from arch_search.run_settings import ResourceSpec
from arch_search.scheduling.ray_folder import clear, clear_abandoned, make_folder
from arch_search.scheduling.ray_start import start_ray

OBJECT_STORE_BYTES = 100 * 2**20  # runs exchange files, not objects
SUSPENDED_SECONDS = 20.0  # Ray itself gives up on a silent GCS after a minute
SERVICES = ("raylet", "gcs_server")


def cpus_here() -> int:
    """Processors that this process may use: its affinity, and its control group's quota."""
    count = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, max(1, int(quota) // int(period)))
    return count


def set_authentication(*, own_cluster: bool) -> None:
    """Choose RAY_AUTH_MODE explicitly, before Ray is imported.

    A cluster of our own gets a fresh token that only the environment of this process and its
    children holds: Ray's own choice would be a file that everyone can read.
    """
    if own_cluster:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        os.environ.pop("RAY_AUTH_TOKEN_PATH", None)
    elif "RAY_AUTH_MODE" not in os.environ:
        given = any(k in os.environ for k in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
        kept = Path("~/.ray/auth_token").expanduser().exists()
        os.environ["RAY_AUTH_MODE"] = "token" if given or kept else "disabled"


class WorkerDied(RuntimeError):  # noqa: N818
    """A process of Ray's ended without an answer: killed, or crashed in native code."""


@dataclass(kw_only=True, slots=True)
class Session:
    """A connection to Ray. `broken` says whether it still works."""

    folder: str = ""  # the temporary folder of a cluster of our own
    services: list[psutil.Process] = field(default_factory=list)
    _suspended: dict[int, float] = field(default_factory=dict)  # since when, by process id

    @property
    def is_local(self) -> bool:
        return bool(self.folder)

    def broken(self) -> str:
        """The service of our own cluster that died; empty while all live."""
        for process in self.services:
            with contextlib.suppress(psutil.Error):
                status = process.status() if process.is_running() else psutil.STATUS_DEAD
                if status == psutil.STATUS_STOPPED:
                    since = self._suspended.setdefault(process.pid, time.monotonic())
                    if time.monotonic() - since > SUSPENDED_SECONDS:
                        return f"Ray's process {process.pid} is suspended"
                    continue
                self._suspended.pop(process.pid, None)
                if status not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                    continue
            return f"Ray's process {process.pid} died"
        return ""

    def capacity(self, resources: ResourceSpec) -> int:
        """How many runs with these resources the cluster holds at once."""
        import ray

        total = ray.cluster_resources()
        held = [int(total.get("CPU", 0) / resources.cpus)]
        if 0 < resources.gpus < 1:  # a run's share lies on one GPU
            held.append(int(total.get("GPU", 0)) * fits(resources.gpus))
        elif resources.gpus:
            held.append(int(total.get("GPU", 0) / resources.gpus))
        return min(held)

    def start(self, name: str, resources: ResourceSpec, *arguments: Any) -> Any:
        """Start one attempt; returns the reference of its outcome. Ray itself retries nothing."""
        import ray

        from arch_search.scheduling.task import perform

        remote: Any = ray.remote(perform)
        asked = {"num_cpus": resources.cpus, "num_gpus": resources.gpus, "max_retries": 0}
        return remote.options(name=name, **asked).remote(*arguments)

    def gpus(self) -> int:
        """How many GPUs the cluster has."""
        import ray

        return int(ray.cluster_resources().get("GPU", 0))

    def call(self, function: str, *arguments: Any, resources: ResourceSpec) -> Any:
        """What `module:function` returns in a worker with these resources; raises what it does.

        Raises:
            WorkerDied: the worker ended before the function did.
        """
        import ray
        from ray.exceptions import RayTaskError, WorkerCrashedError

        from arch_search.scheduling.task import call

        remote: Any = ray.remote(call)
        asked = {"num_cpus": resources.cpus, "num_gpus": resources.gpus, "max_retries": 0}
        try:
            return ray.get(remote.options(name=function, **asked).remote(function, arguments))
        except RayTaskError as error:
            raise error.cause from None
        except WorkerCrashedError as error:
            raise WorkerDied(f"{function}: its worker died") from error

    def wait(self, references: Sequence[Any], *, seconds: float) -> list[Any]:
        """The references whose task is over; waits for one of them so long at most."""
        import ray

        if not references:
            time.sleep(seconds)
            return []
        ready, _ = ray.wait(list(references), num_returns=1, timeout=seconds)
        return ready

    def outcome(self, reference: Any) -> dict[str, Any] | str:
        """The end that the task returned, or why there is none: its worker died."""
        import ray
        from ray.exceptions import RayError

        try:
            return ray.get(reference)
        except RayError as error:
            said = str(error).strip().splitlines() or [""]
            return f"{type(error).__name__}: {said[0].partition('. ')[0]}"

    def cancel(self, references: Sequence[Any]) -> None:
        """Kill the tasks' workers."""
        import ray

        for reference in references:
            ray.cancel(reference, force=True)

    def kill(self, reference: Any, holder: dict[str, Any]) -> None:
        """End a task's worker, even one that is suspended or never looks up.

        Args:
            holder: the lease that names the worker; one on another host is asked through Ray.
        """
        if holder.get("host") != this_host():
            self.cancel([reference])
        elif process_lives(holder["pid"], holder["pid_started"]):
            os.kill(holder["pid"], signal.SIGKILL)

    def close(self) -> None:
        """Leave Ray; a cluster of our own ends, and its folder with it."""
        import ray

        ray.shutdown()
        clear(self.folder)

    def abandon(self) -> None:
        """Kill what is left of a broken cluster of our own."""
        children = psutil.Process().children(recursive=True)
        for process in children:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(children, timeout=10)
        clear(self.folder)


def fits(share: float) -> int:
    """How many runs with this share of a GPU it holds; three thirds fit, whatever 3 x 0.333 is."""
    return int(1 / share + 1e-3)


def start_local(
    cpus: int | None = None, *, say_folder: Callable[[str], None] = lambda folder: None
) -> Session:
    """Start Ray on this machine for this process alone, in a folder that nobody else can enter.

    Args:
        say_folder: told the folder before Ray starts, which takes seconds.
    """
    clear_abandoned()
    set_authentication(own_cluster=True)
    _listen_to_this_machine_only()
    _quiet()

    def make() -> str:
        folder = make_folder()
        say_folder(folder)
        return folder

    folder = start_ray(
        make,
        num_cpus=cpus or cpus_here(),
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        object_store_memory=OBJECT_STORE_BYTES,
    )
    children = psutil.Process().children()
    return Session(folder=folder, services=[c for c in children if c.name() in SERVICES])


def join(address: str) -> Session:
    """Join a running cluster. Raises UsageError if it does not answer or refuses the token."""
    set_authentication(own_cluster=False)
    _quiet()
    import ray
    from ray.exceptions import RayError

    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, RayError) as error:
        first = str(error).strip().splitlines()[0]
        raise UsageError(
            f"Ray cluster {address}: {first} Is it running, and are RAY_AUTH_MODE=token and "
            "RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH set if it wants a token?"
        ) from None
    return Session()


def _listen_to_this_machine_only() -> None:
    """Ray's servers take the address of the node, which this makes 127.0.0.1.

    Meant for systems whose firewall asks about every server; there is no other way to say it.
    """
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"


def _quiet() -> None:
    os.environ.setdefault("RAY_SCHEDULER_EVENTS", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
