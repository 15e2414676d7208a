"""The optimiser and its schedule. What is decayed is what blocks and model declare as decayed."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from arch_search.muon import Muon, is_matrix
from arch_search.spec import OptimiserSpec, ScheduleSpec
from blocks.initialisation import Parameter


def make_optimiser(
    model: nn.Module, declared: Mapping[str, Parameter], spec: OptimiserSpec
) -> torch.optim.AdamW:
    """AdamW over two groups, decayed and not, each in the order of the parameters' names.

    Muon moves matrices, decayed and not, in groups of their own, and the rest as AdamW does.
    """
    muon = spec.name == "muon"
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in sorted(model.named_parameters()):
        diagonal = declared[name].role == "recurrence" and parameter.ndim == 2
        matrix = muon and is_matrix(name, parameter, diagonal=diagonal)
        groups.setdefault((not declared[name].decay, matrix), []).append(parameter)
    return (Muon if muon else torch.optim.AdamW)(
        [
            {
                "params": parameters,
                "weight_decay": 0.0 if undecayed else spec.weight_decay,
                **({"matrices": True} if matrix else {}),
            }
            for (undecayed, matrix), parameters in sorted(groups.items(), key=lambda item: item[0])
        ],
        lr=spec.learning_rate,
        betas=spec.betas,
        eps=spec.eps,
        fused=True,  # one pass over all parameters, on CPU and GPU alike
    )


def learning_rate_share(step: int, steps: int, spec: ScheduleSpec) -> float:
    """The share of the peak learning rate at optimiser step `step` (0 is the first) of `steps`.

    Warm-up is linear and never zero. cosine: falls to `final` at the end. wsd: stays at the peak,
    then falls linearly to `final` over the last `decay` of the steps.
    """
    warmup = round(spec.warmup * steps)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if spec.name == "constant":
        return 1.0
    if spec.name == "cosine":
        progress = (step - warmup) / max(steps - warmup, 1)
        return spec.final + (1 - spec.final) * 0.5 * (1 + math.cos(math.pi * progress))
    decay = max(round(spec.decay * steps), 1)
    progress = max(step - (steps - decay), 0) / decay
    return 1 + (spec.final - 1) * progress


def set_learning_rate(optimiser: torch.optim.Optimizer, value: float) -> None:
    """Set the learning rate of every group."""
    for group in optimiser.param_groups:
        group["lr"] = value


def clip_gradients(model: nn.Module, maximum: float) -> Tensor:
    """Scale gradients to a global norm of at most `maximum` (0: never); returns the norm before."""
    return nn.utils.clip_grad_norm_(model.parameters(), maximum if maximum > 0 else math.inf)
