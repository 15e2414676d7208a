"""What a kernel says when it cannot do what was asked."""


class BackendUnavailable(RuntimeError):
    """A backend asked for by name cannot run here; the message says why and what to do."""
