"""The source that a job takes to a cluster: the checkout's, and that of blocks from outside.

What a block from outside uses is what its code hash covers, so that a worker finds the source that
the run was planned with. It goes as whole packages, since a block may read a file beside it.
"""

import contextlib
import importlib.util
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from arch_search.code_hash import OURS, used_modules
from arch_search.errors import UsageError

REPOSITORY = Path(__file__).resolve().parents[2]
SENT = (*OURS, "dashboards", "experiments", "pyproject.toml")
EXCLUDED = ["**/__pycache__", "**/.git", "**/.venv", "**/.*_cache", "*.egg-info"]
LARGEST_BYTES = 100 * 2**20  # of one package; Ray refuses half a GB, after having packed it
INSTALLED = {"site-packages", "dist-packages"}


@contextlib.contextmanager
def source_folder(modules: Iterable[str]) -> Iterator[Path]:
    """A folder of links to all that a job imports; it is gone afterwards.

    Args:
        modules: where the blocks and tasks in use stand, as 'my_pkg.my_file'. What pip has
            installed is left out: the cluster's own installation has it.
    Raises:
        UsageError: this is no checkout, or a package from outside is too large to be sent.
    """
    if not (REPOSITORY / "pyproject.toml").exists():
        raise UsageError(
            f"{REPOSITORY} is not a checkout of the repository, so its code cannot be sent to a "
            "cluster; install with 'pip install -e .'"
        )
    links = {name: REPOSITORY / name for name in SENT} | _outside(modules)
    with tempfile.TemporaryDirectory(prefix="arch-search-job-") as folder:
        for name, target in links.items():
            (Path(folder) / name).symlink_to(target)
        yield Path(folder)


def _outside(modules: Iterable[str]) -> dict[str, Path]:
    """The packages and single files, by name, that are imported from beside the checkout."""
    found = {}
    for module in used_modules(modules):
        if module.split(".")[0] in OURS:
            continue
        path = _top(module)
        if path is not None and not INSTALLED & set(path.parts):
            _check_size(module, path)
            found[path.name] = path
    return found


def _top(module: str) -> Path | None:
    """The outermost folder that a module lies in, or its file if it lies in none."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).resolve()
    depth = module.count(".") + (path.name == "__init__.py")
    return path.parents[depth - 1] if depth else path


def _check_size(module: str, path: Path) -> None:
    size = 0
    for file in path.rglob("*") if path.is_dir() else ():
        size += file.stat().st_size if file.is_file() else 0
        if size > LARGEST_BYTES:
            raise UsageError(
                f"{module} cannot be sent to the cluster: {path} holds more than "
                f"{LARGEST_BYTES / 2**20:.0f} MiB; put what the block uses into a package of its "
                "own, or install it on the cluster"
            )
