"""What is said of an experiment that is not there."""

from arch_search.storage import Root
from blocks.options import did_you_mean


def unknown_experiment(root: Root, name: str) -> str:
    """Names the experiments that there are, and the nearest."""
    known = [folder.name for folder in root.experiments()] if root.path.is_dir() else []
    if not known:
        return (
            f"no experiment {name!r}: nothing was submitted to {root.path} yet; "
            "run `arch-search submit FILE` first, or set ARCH_SEARCH_ROOT"
        )
    listed, near = ", ".join(known), did_you_mean(name, known)
    return f"no experiment {name!r} under {root.path}; there are: {listed}.{near}"
