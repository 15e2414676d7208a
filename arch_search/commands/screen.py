"""The terminal, as every command writes to it."""

from rich.console import Console


def screen(*, stderr: bool = False) -> Console:
    """A console that prints what people named as they named it: brackets are no markup."""
    return Console(markup=False, emoji=False, highlight=False, stderr=stderr)
