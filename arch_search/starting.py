"""Training that begins with the weights of another model: a finished run's, or an import's."""

from pathlib import Path

from arch_search.errors import UsageError
from arch_search.spec import ModelSpec
from arch_search.storage import Root
from arch_search.stored_model import IMPORTS, find_stored_model, read_import


def resolve_start(root: Root, text: str, model: ModelSpec, *, arm: str) -> str:
    """What a run keeps of `train.start`: the hash of a finished run, or an import's identity.

    Either decides the weights, so it belongs to the hash of the run that begins with them.

    Raises:
        UsageError: no such model, a run that has not finished, or a model unlike the arm's.
    """
    found = find_stored_model(root, text)
    if found.run is not None:
        run = root.run(found.run.hash)
        if run.result() is None or found.step != found.run.steps:
            raise UsageError(
                f"train.start: {text} has not finished, or its last checkpoint is gone; training "
                "can only begin with the last weights of a finished run"
            )
    if unlike := _difference(found.spec, model):
        raise UsageError(
            f"train.start: {text} is another model than arm {arm}: {unlike}; give each arm that "
            "begins with other weights its own train.start, under arms.explicit"
        )
    return found.run.hash if found.run is not None else found.identity


def _difference(theirs: ModelSpec, ours: ModelSpec) -> str:
    """The first thing in which two models differ, in words; empty if weights fit."""
    for name in ("width", "vocabulary", "tie_embeddings", "norm_eps"):
        one, other = getattr(theirs, name), getattr(ours, name)
        if one != other:
            return f"{name} is {one} there and {other} here"
    if len(theirs.layers) != len(ours.layers):
        return f"{len(theirs.layers)} layers there and {len(ours.layers)} here"
    for i, (one, other) in enumerate(zip(theirs.layers, ours.layers, strict=True)):
        if one.kind != other.kind:
            return f"layer {i} is {one.kind} there and {other.kind} here"
        if (one.mlp_width, one.experts) != (other.mlp_width, other.experts):
            return f"layer {i} has an MLP of width {one.mlp_width} there, {other.mlp_width} here"
        for option, value in other.options.items():
            if option in one.options and one.options[option] != value:
                return f"{option} of layer {i} is {one.options[option]} there and {value} here"
    return ""


def start_folder(root: Path, identity: str) -> Path:
    """Where the weights lie that a run begins with.

    Raises:
        ValueError: they are gone.
    """
    run = Root(root).run(identity)
    if run.path.is_dir():
        found = run.latest_checkpoint()
        if found is not None and found[0] == run.spec().steps:
            return found[2]
    for folder in sorted((root / IMPORTS).glob("*")):
        if read_import(folder).identity == identity:
            return folder
    raise ValueError(
        f"the weights that this run begins with are gone: run or import {identity} under {root}"
    )
