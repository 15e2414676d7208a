"""Which backend each kernel ran on in this process, so that a run can record what `auto` chose."""

_USED: dict[str, set[str]] = {}


def record_backend(kernel: str, backend: str) -> None:
    """Remember that `kernel` ran on `backend`."""
    _USED.setdefault(kernel, set()).add(backend)


def backends_used() -> dict[str, list[str]]:
    """The backends that each kernel has run on in this process, sorted."""
    return {kernel: sorted(names) for kernel, names in sorted(_USED.items())}


def forget_backends() -> None:
    """Begin a new record: a worker process serves one run after another."""
    _USED.clear()
