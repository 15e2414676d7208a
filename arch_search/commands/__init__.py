"""One file a verb of the command line."""

import typer


def register(app: typer.Typer) -> None:
    """Add our own commands to the app, in the order in which a person needs them."""
    from arch_search.commands.blocks import blocks
    from arch_search.commands.compare import compare
    from arch_search.commands.control import resume, status, stop
    from arch_search.commands.logs import logs
    from arch_search.commands.plan import plan
    from arch_search.commands.submit import submit

    for command in (blocks, plan, submit, status, logs, stop, resume, compare):
        app.command()(command)
