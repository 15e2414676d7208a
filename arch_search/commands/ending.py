"""What stands on the screen when an experiment that was followed has ended."""

from importlib.metadata import entry_points

from arch_search.commands.compare import compare
from arch_search.commands.screen import screen
from arch_search.commands.sweep import show_sweep
from arch_search.errors import UsageError
from arch_search.storage import Root


def show_ending(root: Root, name: str) -> None:
    """The comparison or the sweep's outcome, and the report; nothing while no run has a result.

    What cannot be compared is said, and is no error: what was asked for, the runs, is over.
    """
    plan = root.experiment(name).plan()
    if not any(root.run(run.hash).result() is not None for run in plan.runs):
        return
    try:
        if plan.sweep is None:
            compare(name)
        else:
            show_sweep(root, plan, screen())
        for command in entry_points(group="arch_search.commands", name="report"):
            command.load()(name)
    except UsageError as error:
        screen(stderr=True).print(str(error))
        return
    print(f"In MLflow: arch-search ui   As a table: arch-search compare {name} --json")
