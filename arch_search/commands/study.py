"""`arch-search study`: optuna-dashboard on a sweep's own storage."""

import os
import shutil
import sysconfig
from pathlib import Path
from typing import Annotated

import typer

from arch_search.commands.control import NameArgument, find
from arch_search.errors import UsageError
from arch_search.storage import Root


def study(
    name: NameArgument,
    port: Annotated[int, typer.Option("--port", min=1024, max=65535)] = 8080,
) -> None:
    """Open optuna-dashboard on a sweep's study, on this machine, until Ctrl-C."""
    root = Root()
    folder = find(root, name)
    plan = folder.frozen_plan()
    if plan.sweep is None:
        raise UsageError(f"{name} is an ablation and has no Optuna study; see 'arch-search ui'")
    from arch_search.search.study import storage_url  # seconds of imports, only when needed

    url = storage_url(plan.sweep, folder, plan.sweep_version)
    if "://" not in url and not Path(url).exists():
        raise UsageError(f"{name} has no study yet: its driver makes it when it starts")
    places = [sysconfig.get_path("scripts"), os.environ.get("PATH", "")]  # not only if activated
    program = shutil.which("optuna-dashboard", path=os.pathsep.join(places))
    if program is None:
        raise UsageError(
            "optuna-dashboard is not installed; install it with: pip install 'arch-search[ui]'"
        )
    print(f"the study of {name}: http://127.0.0.1:{port}  (Ctrl-C stops it)", flush=True)
    os.execv(program, [program, url, "--host", "127.0.0.1", "--port", str(port)])
