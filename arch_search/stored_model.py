"""A trained model by its name: a run, a checkpoint's folder, or a model that was imported."""

import json
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError

from arch_search.checkpoint import WEIGHTS, load_weights
from arch_search.errors import UsageError
from arch_search.files import dump_json, read_json, write_atomic
from arch_search.integrity import damage
from arch_search.model import LanguageModel
from arch_search.spec import ModelSpec, RunSpec
from arch_search.storage import HASH, NAME, Root, RunFolder

IMPORTS, MODEL, SOURCE = "imports", "model.json", "source.json"
_SPEC = TypeAdapter(ModelSpec)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredModel:
    """Weights and what they are of.

    name: as it was asked for.   identity: the run's hash with the step, or the import's name.
    folder: holds model.safetensors.   run: None for a model that was not trained here.
    training_length: tokens in a row in its training; 0 if unknown.
    """

    name: str
    identity: str
    spec: ModelSpec
    folder: Path
    run: RunSpec | None
    step: int | None
    training_length: int
    source: dict[str, Any]  # of an imported model: where it came from

    def load(self, device: torch.device | str = "cpu") -> LanguageModel:
        """The model on a device, in evaluation mode.

        Raises:
            UsageError: weights of another model, or a checkpoint that is not what was written.
        """
        if why := damage(self.folder):
            raise UsageError(f"the checkpoint {self.folder} is damaged: {why}; use another one")
        model = LanguageModel(self.spec).to(device)
        try:
            load_weights(self.folder, model)
        except (RuntimeError, SafetensorError, OSError) as error:
            first = str(error).strip().splitlines()[0]
            raise UsageError(f"{self.folder / WEIGHTS} cannot be loaded: {first}") from None
        return model.eval()


def find_stored_model(root: Root, text: str, *, step: int | None = None) -> StoredModel:
    """Find a model: experiment/arm/seed, a run's hash, an import's name, or a folder.

    Args:
        step: of a run's checkpoints that are kept; the last one if None.
    Raises:
        UsageError: there is none, or it has no checkpoint (of that step).
    """
    imported = root.path / IMPORTS / text
    if NAME.fullmatch(text) and (imported / MODEL).exists():
        return read_import(imported, text)
    if (Path(text) / WEIGHTS).exists():
        return _from_folder(Path(text).absolute(), text)
    from arch_search.commands.logs import find_run

    return _of_run(find_run(root, text), text, step)


def _of_run(run: RunFolder, text: str, step: int | None) -> StoredModel:
    kept = {at: path for attempt in run.attempts() for at, path in attempt.checkpoints()}
    if not kept:
        raise UsageError(f"run {text} has no checkpoint yet")
    if step is not None and step not in kept:
        known = ", ".join(map(str, sorted(kept)))
        raise UsageError(f"run {text} keeps no checkpoint of step {step}; it keeps {known}")
    at = max(kept) if step is None else step
    return _trained_here(run.spec(), run.hash, kept[at], text, at)


def _from_folder(folder: Path, text: str) -> StoredModel:
    if (folder / MODEL).exists():
        return read_import(folder, text)
    run = folder.parents[3] if len(folder.parents) > 3 else folder
    if folder.name.isdigit() and (run / "spec.json").exists() and HASH.fullmatch(run.name):
        return _trained_here(RunFolder(run).spec(), run.name, folder, text, int(folder.name))
    raise UsageError(
        f"{folder} holds {WEIGHTS} and nothing that says of which model; expected a run's "
        f"checkpoint (runs/HASH/attempts/N/checkpoints/STEP) or {MODEL} beside it"
    )


def _trained_here(spec: RunSpec, run_hash: str, folder: Path, text: str, step: int) -> StoredModel:
    return StoredModel(
        name=text,
        identity=f"{run_hash}@{step}",
        spec=spec.model,
        folder=folder,
        run=spec,
        step=step,
        training_length=spec.data.sequence_length,
        source={},
    )


def read_import(folder: Path, text: str = "") -> StoredModel:
    """An imported model's folder. Raises UsageError if it describes none."""
    try:
        spec = _SPEC.validate_json((folder / MODEL).read_bytes())
    except ValidationError as error:
        raise UsageError(f"{folder / MODEL} describes no model: {error.errors()[0]}") from None
    source = read_json(folder / SOURCE) or {}
    return StoredModel(
        name=text or folder.name,
        identity=source.get("identity", folder.name),
        spec=spec,
        folder=folder,
        run=None,
        step=None,
        training_length=int(source.get("training_length", 0)),
        source=source,
    )


def keep_imported(
    root: Root, name: str, model: LanguageModel, source: dict[str, Any]
) -> StoredModel:
    """Keep a model under the root as an import; the same weights again change nothing.

    Raises:
        UsageError: not a name, or other weights are there under it.
    """
    from safetensors.torch import save

    if not NAME.fullmatch(name):
        raise UsageError(
            f"import name {name!r}: expected a letter or digit, then letters, digits, '.', '_', '-'"
        )
    folder = root.path / IMPORTS / name
    weights = save({key: value.contiguous() for key, value in model.state_dict().items()})
    text = json.dumps(asdict(model.spec), indent=1)
    identity = sha256(text.encode() + sha256(weights).digest()).hexdigest()[:16]
    if (folder / MODEL).exists():
        found = read_import(folder, name)
        if found.identity != identity:
            raise UsageError(f"import {name!r} holds another model; give another name")
        return found
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / WEIGHTS, weights)
    write_atomic(folder / SOURCE, dump_json({**source, "identity": identity}))
    write_atomic(folder / MODEL, text)  # last: without it there is no import
    return replace(read_import(folder, name), identity=identity)
