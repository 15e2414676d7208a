"""Parameters that share memory: one under several names is tied, several in one place are wrong."""

from torch import Tensor, nn


def tied_names(module: nn.Module) -> dict[str, str]:
    """Every further name of a tied parameter or buffer, with the name that it goes by."""
    first: dict[int, str] = {}
    tensors = module.state_dict(keep_vars=True)
    owners = {name: first.setdefault(id(tensor), name) for name, tensor in tensors.items()}
    return {name: owner for name, owner in owners.items() if name != owner}


def require_own_memory(module: nn.Module) -> None:
    """Whether no two parameters overlap. Views of one tensor that lie beside each other may be.

    An optimiser would move what overlaps twice a step, and on another device it comes apart.

    Raises:
        ValueError: two do; names both.
    """
    seen: dict[int, list[tuple[int, int, str]]] = {}
    for name, parameter in module.named_parameters():
        first, last = _extent(parameter)
        here = seen.setdefault(parameter.untyped_storage()._cdata, [])
        if other := next((n for a, b, n in here if first <= b and a <= last), None):
            raise ValueError(
                f"parameters {other} and {name} share memory without being one parameter; to tie "
                "them, give the module one nn.Parameter under both names"
            )
        here.append((first, last, name))


def _extent(tensor: Tensor) -> tuple[int, int]:
    """The first and the last element of its storage, in bytes, that a tensor reaches."""
    size, first = tensor.element_size(), int(tensor.storage_offset())
    reach = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first * size, (first + int(reach) + 1) * size - 1
