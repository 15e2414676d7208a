"""What a machine has of what we use. An import proves little: what can be tried is tried."""

import importlib.util
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

import psutil
import torch

from arch_search.environment import git_state
from arch_search.errors import UsageError
from arch_search.extras import how_to_install
from arch_search.redaction import hide_secrets
from arch_search.scheduling.session import cpus_here
from arch_search.storage import Root
from arch_search.tracking.server import probe, reason, tracking_address

PYTHON = ((3, 11), (3, 14))
LOW_DISK_GIB = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line. missing: only some things need it.   bad: nothing runs well without it."""

    what: str
    state: Literal["ok", "missing", "bad"]
    found: str
    advice: str = ""


def diagnose(root: Root, tracking: str = "") -> tuple[Finding, ...]:
    """Look at this machine, in the order in which things are needed; about 5 s."""
    checks: tuple[Callable[[], Finding | Iterator[Finding]], ...] = (
        _python,
        _processors,
        _torch,
        _gpus,
        _triton,
        _fla,
        _mamba,
        _convolution,
        _ray,
        _mlflow,
        _extras,
        lambda: _root(root),
        lambda: _tracking(root, tracking),
        _git,
    )
    found: list[Finding] = []
    for check in checks:
        answer = check()
        found += [answer] if isinstance(answer, Finding) else list(answer)
    return tuple(found)


def _python() -> Finding:
    low, high = PYTHON
    good = low <= sys.version_info[:2] < high
    advice = "" if good else "tested on Python 3.11 to 3.13"
    return Finding(
        what="python",
        state="ok" if good else "bad",
        found=f"{platform.python_version()} at {sys.executable}",
        advice=advice,
    )


def _processors() -> Iterator[Finding]:
    cpus, memory = cpus_here(), psutil.virtual_memory()
    yield Finding(what="processors", state="ok", found=f"{cpus} usable here")
    gib = memory.available / 2**30
    yield Finding(
        what="memory",
        state="ok" if gib > 1 else "bad",
        found=f"{gib:.1f} of {memory.total / 2**30:.1f} GiB free",
        advice="" if gib > 1 else "a worker that trains takes 0.3 GiB before its model",
    )


def _torch() -> Finding:
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    return Finding(what="torch", state="ok", found=f"{torch.__version__}, {build}")


def _gpus() -> Iterator[Finding]:
    if not torch.cuda.is_available():
        yield Finding(what="GPU", state="missing", found="none: runs train on the processor")
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        free, total = (value / 2**30 for value in torch.cuda.mem_get_info(index))
        capability = f"{about.major}.{about.minor}"
        said = f"{about.name}, capability {capability}, {free:.0f} of {total:.0f} GiB free"
        yield Finding(what=f"GPU {index}", state="ok", found=said)


def _triton() -> Finding:
    version = _version("triton")
    if version is None:
        return Finding(
            what="triton",
            state="missing",
            found="not installed",
            advice=f"our fast GPU kernels need it; {how_to_install('gpu')}",
        )
    hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    number = tuple(int(part) for part in version.split("+")[0].split(".")[:3])
    if hopper and (3, 4, 0) <= number < (3, 7, 1):
        return Finding(
            what="triton",
            state="bad",
            found=version,
            advice="computes wrong gradients on Hopper before 3.7.1: upgrade",
        )
    how = "" if torch.cuda.is_available() else ", in its interpreter only (no GPU)"
    return Finding(what="triton", state="ok", found=version + how)


def _fla() -> Finding:
    version = _version("flash-linear-attention")
    if version is None:
        return Finding(
            what="fla",
            state="missing",
            found="not installed",
            advice=f"Gated DeltaNet then runs in torch; {how_to_install('gpu')}",
        )
    works = torch.cuda.is_available()
    return Finding(
        what="fla",
        state="ok" if works else "missing",
        found=version,
        advice="" if works else "its kernels need a GPU",
    )


def _mamba() -> Finding:
    return _optional("mamba-ssm", "Mamba-2 then runs in torch; see README, GPU")


def _convolution() -> Finding:
    return _optional("causal-conv1d", "short convolutions then run in torch")


def _optional(package: str, advice: str) -> Finding:
    """A package that may be absent, with what is then different."""
    version = _version(package)
    return Finding(
        what=package,
        state="ok" if version else "missing",
        found=version or "not installed",
        advice="" if version else advice,
    )


def _ray() -> Finding:
    return _needed("ray")


def _mlflow() -> Iterator[Finding]:
    yield _needed("mlflow", "mlflow-skinny")
    has = importlib.util.find_spec("flask") is not None
    yield Finding(
        what="mlflow server",
        state="ok" if has else "missing",
        found="installed" if has else "not installed",
        advice="" if has else f"`arch-search ui` needs it; {how_to_install('ui')}",
    )


def _extras() -> Iterator[Finding]:
    uses = {
        "wandb": "tracking.wandb",
        "psycopg": "MLflow or a sweep's study on PostgreSQL",
        "optuna-dashboard": "`arch-search study`",
        "datasets": "data of the hub, and tokenised sets",
        "tokenizers": "BPE, as most language experiments in full want it",
    }
    for package, use in uses.items():
        yield _optional(package, f"only for {use}")


def _root(root: Root) -> Iterator[Finding]:
    try:
        root.make()
    except UsageError as error:
        yield Finding(what="storage root", state="bad", found=str(error))
        return
    yield Finding(what="storage root", state="ok", found=f"{root.path}, writable")
    gib = shutil.disk_usage(root.path).free / 2**30
    enough = gib > LOW_DISK_GIB
    yield Finding(
        what="disk",
        state="ok" if enough else "bad",
        found=f"{gib:.1f} GiB free there",
        advice="" if enough else "`arch-search plan` says what a run needs",
    )


def _tracking(root: Root, given: str) -> Finding:
    try:
        address = tracking_address(root, given)
        probe(address)
    except (UsageError, OSError) as error:
        return Finding(what="MLflow reached", state="bad", found=hide_secrets(reason(error)))
    return Finding(what="MLflow reached", state="ok", found=hide_secrets(address))


def _git() -> Finding:
    commit, changed = git_state()
    if not commit:
        return Finding(
            what="git",
            state="missing",
            found="no commit known here",
            advice="runs then record the hash of their code alone",
        )
    return Finding(
        what="git",
        state="ok",
        found=commit[:12] + (", with uncommitted changes" if changed else ""),
    )


def _needed(module: str, package: str = "") -> Finding:
    version = _version(package or module)
    if version is None:
        return Finding(
            what=module,
            state="bad",
            found="not installed",
            advice="install with: pip install -c constraints.txt -e .",
        )
    return Finding(what=module, state="ok", found=version)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
