"""What is checked where runs will run, before the first of them starts: starts and backends."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from arch_search.devices import device_for
from arch_search.model import LanguageModel, build_model
from arch_search.plan_spec import ArmSpec
from arch_search.run_settings import ResourceSpec
from arch_search.start_check import check_start
from arch_search.warm_up import warm_up
from kernels.backends import ask_for, backends_used, forget_backends
from kernels.errors import BackendUnavailable


def preflight(root: str, arms: Sequence[ArmSpec], resources: ResourceSpec) -> dict[str, list[str]]:
    """Build each arm's model, check its start, and run its kernels once; drops all of it.

    Arms with layers, widths and lengths that were seen before cost nothing. What is compiled and
    tuned stays in the node's cache, so that the runs find it.

    Returns:
        the backends that each kernel ran on.
    Raises:
        ValueError: a parameter's start is not as declared, or a backend asked for does not work.
    """
    device = device_for(resources)
    forget_backends()
    ask_for(resources.backends)
    try:
        seen: set[str] = set()
        for arm in arms:
            signatures = set(_signatures(arm))
            if signatures <= seen:
                continue
            seen |= signatures
            model = build_model(arm.model, seed=0, device=device)
            try:
                check_start(model)
                _run(model, arm, device, resources, Path(root) / "tuned")
            except (BackendUnavailable, ValueError) as error:
                raise ValueError(f"arm {arm.name}: {error}") from None
    finally:
        ask_for({})  # the process may serve others
    return backends_used()


def _signatures(arm: ArmSpec) -> list[str]:
    """What tells one layer's kernels from another's."""
    shape = (arm.data.batch, arm.data.sequence_length, arm.data.reset, arm.train.precision)
    shape = (*shape, arm.model.width, arm.model.vocabulary)
    return [json.dumps([asdict(layer), shape], sort_keys=True) for layer in arm.model.layers]


def _run(
    model: LanguageModel, arm: ArmSpec, device: torch.device, resources: ResourceSpec, kept: Path
) -> None:
    batch = resources.micro_batch or arm.data.batch
    shape = (batch, arm.data.sequence_length + 1)
    tokens = torch.randint(arm.model.vocabulary, shape, device=device)
    resets = torch.zeros(shape[0], shape[1] - 1, dtype=torch.bool, device=device)
    warm_up(
        model, tokens, 0, arm.train.precision, resets if arm.data.reset else None,
        resources=resources, kept=kept, halved=lambda _: None,
    )  # fmt: skip
