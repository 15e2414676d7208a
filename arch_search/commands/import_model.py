"""`arch-search import`: models of others, kept under the storage root."""

import json
from pathlib import Path
from typing import Annotated

import typer

from arch_search.storage import Root


def import_model(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="As state-spaces publishes "
                      "Mamba-2: config.json with model.safetensors or pytorch_model.bin.")],
    name: Annotated[str | None, typer.Option("--name", help="What to call it; the folder's name "
                                             "if not given.")] = None,
    training_length: Annotated[int, typer.Option("--training-length", min=0, help="Tokens in a "
                               "row in its training, which the files do not say; 0: unknown.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:  # fmt: skip
    """Read a published Mamba-2 model from local files.

    Then `inspect`, `evaluate` and `train.start` know it by its name.
    """
    from arch_search.state_spaces import read_state_spaces  # torch, for this command alone
    from arch_search.stored_model import keep_imported

    root = Root().make()
    model = read_state_spaces(folder)
    source = {"folder": str(folder.absolute()), "training_length": training_length}
    stored = keep_imported(root, name or folder.absolute().name, model, source)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if as_json:
        print(json.dumps({"name": stored.name, "identity": stored.identity,
                          "folder": str(stored.folder), "parameters": parameters}))  # fmt: skip
        return
    layers, width = len(model.spec.layers), model.spec.width
    print(f"{stored.name}: {parameters:,} parameters in {layers} layers of width {width}")
    print(stored.folder)
