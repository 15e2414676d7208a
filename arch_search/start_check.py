"""Whether a model starts as its blocks say: an unfilled parameter would decide a comparison."""

import math

import torch

from arch_search.model import LanguageModel


@torch.no_grad()
def check_start(model: LanguageModel) -> None:
    """Whether every parameter is filled and has the mean and deviation that its block declares.

    Raises:
        ValueError: names the parameter, what it has and what was declared.
    """
    declared = model.declared_parameters()
    for name, parameter in model.named_parameters():
        mean, std = declared[name].start.moments(parameter.shape)
        found = torch.stack(torch.std_mean(parameter.double(), correction=0)).tolist()
        margin = 6 * std / math.sqrt(parameter.numel()) + 1e-6
        right = abs(found[1] - mean) <= margin and abs(found[0] - std) <= 3 * margin + 0.05 * std
        if not right:  # what is not finite is not right, either
            raise ValueError(
                f"parameter {name} {tuple(parameter.shape)} starts with mean {found[1]:.3g} and "
                f"deviation {found[0]:.3g}; its block declares {mean:.3g} and {std:.3g}"
            )
