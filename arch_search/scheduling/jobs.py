"""Sends the driver to a Ray cluster as a Ray job. The storage root must be visible there."""

import contextlib
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from arch_search.errors import UsageError
from arch_search.scheduling.session import set_authentication
from arch_search.scheduling.source_folder import EXCLUDED, source_folder

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


def send(address: str, name: str, arguments: list[str], modules: Iterable[str]) -> str:
    """Submit the driver; returns the job's id. One job at a time for each experiment.

    Args:
        modules: where the experiment's blocks and tasks stand; those from outside are sent along.
    Raises:
        UsageError: the cluster does not answer, wants another token, or runs this job already; or
            the source cannot be sent.
    """
    entry = ["python", "-m", "arch_search.scheduling.driver", *arguments]
    with source_folder(modules) as folder, _explained(address):
        client = _client(address)
        number = _next_number(client, address, name)
        return client.submit_job(
            entrypoint=shlex.join(entry),
            submission_id=f"{name}-{number}",  # a second sender of the same job is refused
            runtime_env={"working_dir": str(folder), "excludes": EXCLUDED},
            entrypoint_num_cpus=0,
            metadata={"experiment": name},
        )


def ended(address: str, job: str) -> str:
    """How a job ended, with Ray's message; empty while it has not."""
    with _explained(address):
        info = _client(address).get_job_info(job)
    status = str(info.status.value)
    return f"{status}: {info.message or ''}".strip() if status in ENDED else ""


def log(address: str, job: str) -> str:
    """What the job's driver has printed."""
    with _explained(address):
        return _client(address).get_job_logs(job)


def _client(address: str) -> Any:
    set_authentication(own_cluster=False)
    from ray.job_submission import JobSubmissionClient

    return JobSubmissionClient(address)


def _next_number(client: Any, address: str, name: str) -> int:
    """One after the experiment's last job. Raises UsageError while that one has not ended."""
    last = 0
    for job in client.list_jobs():
        found = re.fullmatch(re.escape(name) + r"-(\d+)", job.submission_id or "")
        if found and str(job.status.value) not in ENDED:
            raise UsageError(f"{name} is running already on {address}, as job {job.submission_id}")
        last = max(last, int(found[1]) if found else 0)
    return last + 1


@contextlib.contextmanager
def _explained(address: str) -> Iterator[None]:
    """Turn what Ray's client raises into one line for the user."""
    from ray.exceptions import RayError

    try:
        yield
    except UsageError:
        raise
    except (RayError, RuntimeError, OSError, ValueError) as error:
        raise UsageError(_explain(address, error)) from None


def _explain(address: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    if "nauthorized" in text or "authentication" in text.lower() or "403" in text:
        return (
            f"Ray cluster {address} refused us: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH "
            "(or RAY_AUTH_TOKEN) to the cluster's token"
        )
    if isinstance(error, ConnectionError) or "connect" in text.lower():
        return f"no Ray cluster answers at {address}; is its dashboard's address right?"
    return f"Ray cluster {address}: {text[:200]}"
