"""`arch-search study`: optuna-dashboard on a sweep's own storage."""

from typing import Annotated

import typer

from arch_search.commands.control import NameArgument, find
from arch_search.errors import UsageError
from arch_search.storage import Root


def study(
    name: NameArgument,
    port: Annotated[int, typer.Option("--port", min=1024, max=65535)] = 8080,
) -> None:
    """Open optuna-dashboard on a sweep's study, until Ctrl-C.

    It listens to this machine alone.
    """
    folder = find(Root(), name)
    plan = folder.frozen_plan()
    if plan.sweep is None:
        raise UsageError(f"{name} is an ablation and has no Optuna study; see 'arch-search ui'")
    from arch_search.search.dashboard import serve_study  # seconds of imports, only when needed
    from arch_search.search.study import stored_study

    storage = stored_study(plan.sweep, folder, plan.sweep_version)
    if storage is None:
        raise UsageError(f"{name} has no study yet: its driver makes it when it starts")
    print(f"the study of {name}: ", end="", flush=True)
    serve_study(storage, port)
