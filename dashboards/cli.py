"""`arch-search report` and `arch-search ui`."""

import json
import os
import signal
import sys
import tempfile
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from arch_search.errors import UsageError
from arch_search.records import read_experiment
from arch_search.storage import Root
from arch_search.tracking.reports import attach_report
from dashboards.pages import charts_url
from dashboards.report import headline, make_report, report_files, write_files
from dashboards.sweep_report import make_sweep_report, sweep_files, sweep_headline
from dashboards.ui import running_ui


def report(
    name: Annotated[str, typer.Argument(help="The experiment's name.")],
    metric: Annotated[
        str | None, typer.Option("--metric", help="A final metric; the primary one if not given.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", help="The folder for the files; the experiment's own if not given."
        ),
    ] = None,
    figures: Annotated[
        str,
        typer.Option(
            "--figures", help="Only Markdown with these figures, by comma; to keep, not logged."
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the files as JSON.")] = False,
) -> None:
    """Write the experiment as one HTML page, Markdown, LaTeX tables and SVG figures; log them."""
    root = Root()
    experiment = read_experiment(name, root)
    chosen = [one for one in figures.split(",") if one]
    if experiment.plan.sweep is not None:
        files = sweep_files(make_sweep_report(root, experiment.plan), only=chosen)
        numbers = sweep_headline(root, experiment.plan)
    else:
        made = make_report(experiment, metric=metric)
        files, numbers = report_files(made, only=chosen), headline(made.comparison)
    paths = write_files(files, _writable(output or experiment.folder.report))
    behind = "" if chosen else attach_report(root, experiment.plan, paths, numbers)
    if as_json:
        logged = behind or ("a part is not logged" if chosen else "logged")
        print(json.dumps({"files": [str(path) for path in paths], "mlflow": logged}))
        return
    first = "report.md" if chosen else "report.html"
    print(next(path for path in paths if path.name == first))
    if behind:
        print(f"not logged to MLflow: {behind}", file=sys.stderr)


def ui(
    port: Annotated[
        int, typer.Option("--port", min=1024, max=65534, help="MLflow's; the pages take the next.")
    ] = 5000,
    browser: Annotated[
        bool,
        typer.Option("--browser/--no-browser", help="Open the pages if there is a screen."),
    ] = True,
) -> None:
    """Serve MLflow and the reports on this machine until Ctrl-C."""
    root = Root()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with running_ui(root, port) as running:
            print(f"curves and runs  {running.mlflow_url}")
            print(f"reports          {running.pages_url}")
            for folder in root.experiments():
                print(f"  {folder.name}: {running.pages_url}/{folder.name}/report.html")
                if charts := charts_url(folder, running.mlflow_url):
                    print(f"  {folder.name}: {charts}")
            print("Ctrl-C stops both.", flush=True)
            if browser and _has_screen():
                webbrowser.open(running.pages_url)
            if running.process.wait() != 0:
                print("arch-search: MLflow's server ended by itself", file=sys.stderr)
                raise typer.Exit(1)
    except KeyboardInterrupt:
        return
    except RuntimeError as error:
        print(f"arch-search: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


def _writable(folder: Path) -> Path:
    """The folder, made. Raises UsageError if nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise UsageError(
            f"the report cannot be written to {folder} ({error.strerror}); choose another folder "
            "with --output"
        ) from None


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _has_screen() -> bool:
    screen = sys.platform == "darwin" or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    return screen and sys.stdout.isatty()
