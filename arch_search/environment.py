"""Where a run ran: versions, device, kernel backends, git commit and what was not committed."""

import hashlib
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from arch_search.devices import device_model
from arch_search.storage import AttemptFolder, RunFolder

PACKAGES = (
    *("torch", "triton", "numpy", "flash-linear-attention", "mamba-ssm", "causal-conv1d"),
    "arch-search",
)


def describe_environment(device: torch.device) -> dict[str, Any]:
    """What `result.json` says of the machine and the code."""
    commit, diff = git_state()
    return {
        "versions": versions(),
        "device": device_model(device),
        "threads": torch.get_num_threads(),
        "git_commit": commit,
        "diff_hash": diff,
    }


def earlier_environments(run: RunFolder, attempt: AttemptFolder) -> str:
    """Where the attempts that this one goes on from ran otherwise; "" where nothing differs.

    Reads as "attempt 1, to step 40: device A instead of B; torch 2.12.0 instead of 2.13.0".
    """
    here = _facts(attempt.environment())
    said = []
    while (resumed := attempt.lease().get("resumed_from")) is not None:
        attempt = run.attempt(resumed["attempt"])
        before = _facts(attempt.environment())
        changed = [
            f"{key} {before.get(key, 'none')} instead of {here.get(key, 'none')}"
            for key in sorted(before.keys() | here.keys())
            if before and before.get(key) != here.get(key)
        ]
        if changed:
            said.append(
                f"attempt {attempt.number}, to step {resumed['step']}: {'; '.join(changed)}"
            )
    return ". ".join(reversed(said))


def _facts(environment: dict[str, Any]) -> dict[str, Any]:
    facts = {**environment, **environment.get("versions", {})}
    return {k: v for k, v in facts.items() if k in (*PACKAGES, "python", "device", "threads")}


def versions() -> dict[str, str]:
    """Of Python and of the packages that results depend on, where they are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_state() -> tuple[str, str]:
    """The commit of the code in use, and a hash of its uncommitted diff; empty where unknown."""
    folder = Path(__file__).resolve().parent
    commit = _git("rev-parse", "HEAD", folder=folder)
    diff = _git("diff", "HEAD", folder=folder)
    return commit, hashlib.sha256(diff.encode()).hexdigest()[:16] if diff else ""


def _git(*arguments: str, folder: Path) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
