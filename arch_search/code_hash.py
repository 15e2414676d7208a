"""The hash of the source that decides a run's weights, and of nothing else.

Starts from the training code and the blocks in use and follows their imports within the project
(and within the folder of a block from outside). Comments, docstrings and layout do not count.
"""

import ast
import hashlib
import importlib.util
from collections.abc import Iterable
from functools import cache
from pathlib import Path

OURS = ("arch_search", "blocks", "kernels")
TRAINING = ("arch_search.train", "arch_search.model", "arch_search.optim", "arch_search.data")
# Imported by training, but of no effect on weights: how runs are stored, timed and evaluated.
# How data are prepared is known by the manifest's hash, which is in the specification.
WITHOUT_EFFECT = tuple(
    f"arch_search.{name}"
    for name in (
        *(
            "attempt",
            "errors",
            "files",
            "journal",
            "lease",
            "metrics",
            "storage",
            "sweep_spec",
            "tasks",
        ),
        *("data.corpora", "data.tokenizers", "data.prepare", "data.writing", "data.in_place"),
    )
)


def code_hash(block_modules: Iterable[str]) -> str:
    """A short hash over the source behind `TRAINING` and these modules, such as 'blocks.gru'."""
    digest = hashlib.sha256()
    for name, source in sorted(_closure([*TRAINING, *block_modules]).items()):
        digest.update(f"{name}\0{source}\0".encode())
    return digest.hexdigest()[:16]


def used_modules(block_modules: Iterable[str]) -> list[str]:
    """The modules that the hash covers."""
    return sorted(_closure([*TRAINING, *block_modules]))


def _closure(roots: Iterable[str]) -> dict[str, str]:
    packages = {*OURS, *(name.split(".")[0] for name in roots)}
    found: dict[str, str] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in found or name.startswith(WITHOUT_EFFECT):
            continue
        path = _source_path(name)
        if path is None:
            continue
        found[name], imports = _read(path)
        waiting += [other for other in imports if other.split(".")[0] in packages]
    return found


@cache
def _source_path(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # `from package import attribute`
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)


@cache
def _read(path: Path) -> tuple[str, tuple[str, ...]]:
    """The code of a file as canonical text, and the names that it imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            imports += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_docstring(body[0]):
            body[0] = ast.Pass()
    return ast.dump(tree), tuple(imports)


def _is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
