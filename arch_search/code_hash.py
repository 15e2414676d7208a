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
_STORED = (
    *("attempt", "errors", "files", "journal", "lease", "metrics", "starting", "storage"),
    *("stored_model", "run_settings"),
)
_PREPARED = ("data.corpora", "data.tokenizers", "data.prepare", "data.writing", "data.in_place")
_TASKS = "arch_search.tasks"
WITHOUT_EFFECT = (
    "blocks.registry",  # only names modules, and those in use are covered themselves
    "arch_search.synthetic.registry",  # likewise
    *(f"arch_search.{name}" for name in (*_STORED, *_PREPARED)),
    _TASKS,
)


def code_hash(block_modules: Iterable[str]) -> str:
    """A short hash over the source behind `TRAINING` and these modules, such as 'blocks.gru'."""
    return _digest(_closure([*TRAINING, *block_modules]))


def evaluation_hash(task_module: str) -> str:
    """The same for an evaluation: the source behind its task and the model, blocks left out.

    Blocks differ between arms, and are covered by each run's own hash.
    """
    kept = tuple(name for name in WITHOUT_EFFECT if name != _TASKS)
    roots = [task_module, "arch_search.model"]
    return _digest(_closure(roots, (*kept, "arch_search.tasks.registry")))


def _digest(sources: dict[str, str]) -> str:
    digest = hashlib.sha256()
    for name, source in sorted(sources.items()):
        digest.update(f"{name}\0{source}\0".encode())
    return digest.hexdigest()[:16]


def used_modules(block_modules: Iterable[str]) -> list[str]:
    """The modules that the hash covers."""
    return sorted(_closure([*TRAINING, *block_modules]))


def _closure(roots: Iterable[str], without: tuple[str, ...] = WITHOUT_EFFECT) -> dict[str, str]:
    """The canonical source of every module behind `roots`, by name, but for those `without`.

    Followed: imports of the project, and of what stands in the folder of a root from outside; the
    packages that a module lies in are executed with it, and count as well.
    """
    packages = {*OURS, *(name.split(".")[0] for name in roots)}
    outside = [name for name in roots if name.split(".")[0] not in OURS]
    folders = {path.parent for name in outside if (path := _source_path(name)) is not None}
    found: dict[str, str] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        top = name.split(".")[0]
        if name in found or name.startswith(without):
            continue
        if top not in packages and not any(_stands_in(folder, top) for folder in folders):
            continue
        path = _source_path(name)
        if path is None:
            continue
        state = path.stat()
        found[name], imports = _read(path, name, state.st_mtime_ns, state.st_size)
        waiting += imports
        if top not in OURS:  # ours only name what they hold
            waiting += [name[:at] for at, letter in enumerate(name) if letter == "."]
    return found


def _stands_in(folder: Path, module: str) -> bool:
    return (folder / f"{module}.py").is_file() or (folder / module / "__init__.py").is_file()


def _source_path(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):  # `from package import attribute`
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)


@cache
def _read(path: Path, name: str, changed_ns: int, size: int) -> tuple[str, tuple[str, ...]]:
    """The code of a file as canonical text, and the names that it imports, absolute."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    imports: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            if node.level and not package:
                continue
            module = importlib.util.resolve_name(source, package) if node.level else source
            imports += [module, *(f"{module}.{alias.name}" for alias in node.names)]
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_docstring(body[0]):
            body[0] = ast.Pass()
    return _canonical(tree), tuple(imports)


def _canonical(node: object) -> str:
    """A syntax tree as text that is the same under every Python that we support.

    `ast.dump` is not: newer versions leave empty fields out and have fields that older ones lack.
    """
    if isinstance(node, ast.AST):
        given = ((name, getattr(node, name, None)) for name in node._fields)
        kept = [
            f"{n}={_canonical(v)}" for n, v in given if v is not None and v != [] and n != "kind"
        ]
        return f"{type(node).__name__}({', '.join(kept)})"
    if isinstance(node, list):
        return f"[{', '.join(map(_canonical, node))}]"
    return repr(node)


def _is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
