"""How much of a GPU's memory a run takes: measured with a step of each arm, not guessed."""

import gc
from collections.abc import Sequence
from dataclasses import asdict, replace

import torch

from arch_search.devices import CONTEXT_BYTES, device_for
from arch_search.plan_spec import ArmSpec
from arch_search.run_settings import ResourceSpec
from arch_search.spec import content_hash
from arch_search.throughput.contender import Contender

STEPS = 2  # the second has the optimiser's state as well
MARGIN = 1.5  # evaluation reads longer texts than training; fragments of the allocator


def runs_that_fit(arms: Sequence[ArmSpec], resources: ResourceSpec) -> int:
    """How many runs of the neediest arm this process's GPU holds at once, at least one.

    Raises:
        ValueError: there is no GPU here.
        torch.OutOfMemoryError: an arm does not even fit alone.
    """
    device = device_for(replace(resources, gpus=1))
    needs = [_reserved(arm, resources, device) for arm in _distinct(arms)]
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


def _reserved(arm: ArmSpec, resources: ResourceSpec, device: torch.device) -> int:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_reserved(device)
    batch = min(resources.micro_batch or arm.data.batch, arm.data.batch)
    one = Contender(arm, device, resources=resources)
    step = one.training_step(batch, arm.data.sequence_length)
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_reserved(device) - before
    del step, one
    gc.collect()
    return peak
