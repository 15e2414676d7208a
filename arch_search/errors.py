"""What can go wrong on purpose; free of every library, so that all pieces can share it."""

from typing import Literal


class UsageError(ValueError):
    """Something a user gave is wrong. The command line prints it as one line and exits with 2."""


class Diverged(ArithmeticError):  # noqa: N818 (a fact about a run, not a mistake in the program)
    """A run's numbers stopped being finite. The same run would do so again: it is not retried."""

    def __init__(self, step: int, what: str) -> None:
        super().__init__(step, what)
        self.step, self.what = step, what

    def __str__(self) -> str:
        return f"{self.what} is not finite at step {self.step}"


class Stopped(Exception):  # noqa: N818
    """The run was asked to stop: by a person (KILLED) or by its machine (PREEMPTED)."""

    def __init__(self, state: Literal["KILLED", "PREEMPTED"], reason: str) -> None:
        super().__init__(state, reason)
        self.state: Literal["KILLED", "PREEMPTED"] = state
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class Fenced(Exception):  # noqa: N818
    """A later attempt owns the run: this one must not write any more."""
