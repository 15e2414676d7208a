"""What torch's compiler is told of our kernels, once it is at work: it takes seconds to load."""

from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable)

_CONSTANT: list[Callable] = []


def constant(function: Function) -> Function:
    """Constants in, a constant out: the compiler calls it while it traces, and looks no further."""
    _CONSTANT.append(function)
    return function


def tell_compiler() -> None:
    """Say so to the compiler; idempotent."""
    import torch

    for function in _CONSTANT:
        torch.compiler.assume_constant_result(function)
