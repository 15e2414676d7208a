"""Where a run ran: versions, device, kernel backends, git commit and what was not committed."""

import hashlib
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from arch_search.devices import device_model

PACKAGES = ("torch", "triton", "numpy", "flash-linear-attention", "mamba-ssm", "arch-search")


def describe_environment(device: torch.device, backends: dict[str, str]) -> dict[str, Any]:
    """What `result.json` says of the machine and the code.

    Args:
        backends: the kernel backend in use for each kind of block.
    """
    commit, diff = git_state()
    return {
        "versions": {"python": platform.python_version(), **_versions()},
        "device": device_model(device),
        "threads": torch.get_num_threads(),
        "backends": backends,
        "git_commit": commit,
        "diff_hash": diff,
    }


def _versions() -> dict[str, str]:
    found = {}
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
