"""How much of a GPU's memory a run takes: measured with a step of each arm, not guessed."""

import gc
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from arch_search.devices import CONTEXT_BYTES, device_for
from arch_search.errors import UsageError
from arch_search.plan_spec import ArmSpec
from arch_search.run_settings import ResourceSpec
from arch_search.spec import content_hash
from arch_search.throughput.contender import Contender
from kernels.backends import ask_for
from kernels.errors import BackendUnavailable

STEPS = 2  # the second has the optimiser's state as well
MARGIN = 1.5  # evaluation reads longer texts than training; fragments of the allocator


def runs_that_fit(root: str, arms: Sequence[ArmSpec], resources: ResourceSpec) -> int:
    """How many runs of the neediest arm this process's GPU holds at once, at least one.

    Measured on the backends and tuned configurations of the runs: others keep more or less.

    Args:
        root: the storage root, in which `resources.tuned` is kept.
    Raises:
        ValueError: there is no GPU here, or a backend asked for by name does not work on it.
        torch.OutOfMemoryError: an arm does not even fit alone.
    """
    device, tuned = device_for(replace(resources, gpus=1)), Path(root) / "tuned"
    ask_for(resources.backends)
    try:
        needs = [_reserved(arm, resources, device, tuned) for arm in _distinct(arms)]
    except BackendUnavailable as error:
        raise UsageError(str(error)) from None
    finally:
        ask_for({})  # the process may serve others
    total = torch.cuda.get_device_properties(device).total_memory
    return max(1, int(total // (MARGIN * max(needs) + CONTEXT_BYTES)))


def _distinct(arms: Sequence[ArmSpec]) -> list[ArmSpec]:
    """Arms that differ in parameters or in the mixers they are made of, in any order."""
    return list({_needs(arm): arm for arm in arms}.values())


def _needs(arm: ArmSpec) -> str:
    mixers = sorted(content_hash([la.kind, la.options, la.mlp_width]) for la in arm.model.layers)
    return content_hash([mixers, arm.data.batch, arm.data.sequence_length])


def kernel_signature(arm: ArmSpec, batch: int) -> str:
    """Equal for arms whose kernels are the same ones: layers of the same kinds, at equal sizes."""
    layers = sorted({content_hash(asdict(layer)) for layer in arm.model.layers})
    sizes = [arm.model.width, arm.model.vocabulary, batch, arm.data.sequence_length]
    return content_hash([layers, sizes, arm.train.precision])


def _reserved(arm: ArmSpec, resources: ResourceSpec, device: torch.device, tuned: Path) -> int:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_reserved(device)
    batch = min(resources.micro_batch or arm.data.batch, arm.data.batch)
    one = Contender(arm, device, resources=resources, tuned=tuned)
    step = one.training_step(batch, arm.data.sequence_length)
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_reserved(device) - before
    del step, one
    gc.collect()
    return peak
