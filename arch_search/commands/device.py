"""The device that a command was told to compute on."""

import torch

from arch_search.errors import UsageError


def named_device(given: str) -> torch.device:
    """As torch names it; if nothing is given, a GPU where there is one.

    Raises:
        UsageError: torch knows no such device, or there is none here.
    """
    name = given or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(f"--device {given}: {str(error).splitlines()[0]}") from None
    return torch.device(name)
