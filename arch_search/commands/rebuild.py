"""`arch-search rebuild`: fill an MLflow from the storage root, where the truth stands."""

import json
from typing import Annotated

import typer

from arch_search.commands.control import find, settle_experiment
from arch_search.commands.names import NameArgument
from arch_search.errors import UsageError
from arch_search.progress import has_driver
from arch_search.redaction import hide_secrets
from arch_search.storage import Root


def rebuild(
    name: NameArgument,
    uri: Annotated[
        str, typer.Option("--uri", help="Where to; the experiment's own MLflow if not given.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Bring MLflow to what the storage root holds.

    What it has already stays as it is.
    """
    root = Root().make()
    folder = find(root, name)
    settle_experiment(root, folder)
    if has_driver(folder):
        raise UsageError(f"{name} is running: its driver keeps MLflow up to date; stop it first")
    from arch_search.tracking import writer
    from arch_search.tracking.server import probe, reason, tracking_address

    address = tracking_address(root, uri or folder.plan().tracking_uri)
    probe(address)
    try:
        writer.rebuild(root, name, uri)
    except Exception as error:  # whatever MLflow, a database or the network raises
        said = f"MLflow at {hide_secrets(address)} did not take {name}: {reason(error)}"
        raise UsageError(said) from None
    runs = len(folder.plan().runs)
    said = {"name": name, "runs": runs, "uri": hide_secrets(address)}
    print(json.dumps(said) if as_json else f"{name}: {runs} runs are in {said['uri']}")
