"""What a kernel says when it cannot do what was asked."""


class BackendUnavailable(RuntimeError):  # noqa: N818 - it is a state, not a mistake
    """A backend asked for by name cannot run here; the message says why and what to do."""
