"""Compiled kernels and tuned configurations of this machine, kept beyond the runs that made them.

They stand in a folder of the node, never on a disk that nodes share: compilers rename files there
and expect to be alone. Set before triton or torch's compiler is imported, so free of both.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from arch_search.errors import UsageError

VARIABLE = "ARCH_SEARCH_KERNEL_CACHE"  # names another folder
TUNED = "*.autotune.json"  # what Triton's autotuner writes, one for each kernel and key


def use_kernel_cache(environment: MutableMapping[str, str] = os.environ) -> Path:
    """Point the compilers of this process to the node's folder, unless they are pointed elsewhere.

    Returns:
        the folder of compiled Triton kernels and tuned configurations.
    Raises:
        UsageError: the folder belongs to somebody else, or others may write to it.
    """
    folder = _own_folder(environment.get(VARIABLE))
    for name, part in (("TRITON_CACHE_DIR", "triton"), ("TORCHINDUCTOR_CACHE_DIR", "inductor")):
        environment.setdefault(name, str(folder / part))
    environment.setdefault("TRITON_CACHE_AUTOTUNING", "1")
    triton = Path(environment["TRITON_CACHE_DIR"])
    triton.mkdir(parents=True, exist_ok=True)
    return triton


def _own_folder(given: str | None) -> Path:
    """The node's folder. What lies in it is executed, so nobody else may write there."""
    folder = Path(given or f"{tempfile.gettempdir()}/arch-search-kernels-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise UsageError(
            f"{folder} holds compiled kernels, but belongs to another user, or others may write to "
            f"it; remove it, or name another folder in {VARIABLE}"
        )
    return folder


@contextlib.contextmanager
def alone_on_this_node(cache: Path, what: str) -> Iterator[None]:
    """Wait until no other process here is warming up: tuning times kernels.

    Args:
        what: a name of what is compiled and tuned inside. What was so before finds it in the cache,
            so it waits for nobody: runs that share a GPU would start one behind the other.
    """
    done = cache / "warm" / what
    if done.exists():
        yield
        return
    with (cache / "warm-up.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if done.exists():  # by the one that this has waited for
            fcntl.flock(file, fcntl.LOCK_UN)
        yield
        done.parent.mkdir(exist_ok=True)
        done.touch()


def tuned_files(cache: Path) -> dict[str, float]:
    """The tuned configurations in a cache, by their path in it, with their time of writing."""
    return {str(p.relative_to(cache)): p.stat().st_mtime for p in sorted(cache.glob(f"*/{TUNED}"))}


def chosen(cache: Path) -> dict[str, str]:
    """The fastest configuration of each kernel and key: "kernel[key]" -> "BK: 64, num_warps: 4"."""
    best = {}
    for path in tuned_files(cache):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads((cache / path).read_text())
            config, _ = min(found["configs_timings"], key=_seconds)
            key = ", ".join(str(part) for part in found["key"] if not str(part).startswith("torch"))
            said = {**config.get("kwargs", {}), "warps": config.get("num_warps")}
            said["stages"] = config.get("num_stages")
            name = Path(path).name.removesuffix(TUNED[1:])
            best[f"{name}[{key}]"] = ", ".join(f"{k} {v}" for k, v in said.items())
    return best


def _seconds(row: list) -> float:
    timing = row[1]
    return float(timing[0] if isinstance(timing, list) else timing)


def keep_tuned(cache: Path, kept: Path) -> str:
    """Copy a cache's tuned configurations to kept/<hash>.json; the hash pins them elsewhere."""
    files = {path: (cache / path).read_text() for path in tuned_files(cache)}
    text = json.dumps(files, sort_keys=True)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    kept.mkdir(parents=True, exist_ok=True)
    target = kept / f"{name}.json"
    if not target.exists():
        made = kept / f".{name}-{os.getpid()}"
        made.write_text(text)
        made.rename(target)
    return name


def find_tuned(kept: Path, name: str) -> Path:
    """Where the tuned configurations stand that `keep_tuned` called `name`.

    Raises:
        UsageError: there are none of that name.
    """
    found = kept / f"{name}.json"
    if not found.is_file():
        known = ", ".join(sorted(p.stem for p in kept.glob("*.json"))) or "none yet"
        raise UsageError(f"resources.tuned: {name!r} is not in {kept}; there: {known}")
    return found


def pin_tuned(cache: Path, kept: Path, name: str) -> None:
    """Put the tuned configurations that `keep_tuned` called `name` into a cache.

    Raises:
        UsageError: as `find_tuned`.
    """
    files = json.loads(find_tuned(kept, name).read_text())
    for path, text in files.items():
        target = cache / path
        if target.resolve().is_relative_to(cache.resolve()):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
