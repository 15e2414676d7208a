"""A checkpoint: safetensors for weights and moments, JSON for the rest. Nothing in it executes."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from arch_search.aliases import tied_names
from arch_search.integrity import read_progress, write_progress

WEIGHTS, MOMENTS = "model.safetensors", "optimiser.safetensors"


def save_checkpoint(
    folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer, progress: Any
) -> None:
    """Write a checkpoint into an empty folder. What is tied is written once."""
    tied = tied_names(model)
    weights = {name: value for name, value in model.state_dict().items() if name not in tied}
    save_file(_apart(weights), folder / WEIGHTS)
    moments = {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimiser.state[parameter].items()
        if isinstance(value, Tensor)
    }
    save_file(_apart(moments), folder / MOMENTS)
    write_progress(folder, asdict(progress))


def load_checkpoint(
    folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer
) -> dict[str, Any]:
    """Put a checkpoint's weights and moments in place; returns its progress."""
    load_weights(folder, model)
    moments = load_file(folder / MOMENTS)
    for parameter, state in _moments_by_parameter(model, moments):
        optimiser.state[parameter] = {
            key: value.to(parameter.device) if value.ndim or _is_fused(optimiser) else value
            for key, value in state.items()
        }
    return read_progress(folder)


def load_weights(folder: Path, model: nn.Module) -> None:
    """Put a checkpoint's weights into the model. Raises RuntimeError for weights of another one."""
    weights = load_file(folder / WEIGHTS)
    for name, owner in tied_names(model).items():
        if owner in weights:
            weights[name] = weights[owner]
    model.load_state_dict(weights)


def _moments_by_parameter(
    model: nn.Module, moments: dict[str, Tensor]
) -> Iterator[tuple[nn.Parameter, dict[str, Tensor]]]:
    by_name: dict[str, dict[str, Tensor]] = {}
    for full_name, value in moments.items():
        name, _, key = full_name.rpartition("/")
        by_name.setdefault(name, {})[key] = value
    for name, parameter in model.named_parameters():
        yield parameter, by_name[name]


def _is_fused(optimiser: torch.optim.Optimizer) -> bool:
    return bool(optimiser.defaults.get("fused"))


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor contiguous and alone in its memory, as the format wants it."""
    return {name: _alone(tensor.detach().contiguous()) for name, tensor in tensors.items()}


def _alone(tensor: Tensor) -> Tensor:
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
