"""Which device a run computes on, and in which precision."""

import contextlib
import platform
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from arch_search.run_settings import ResourceSpec


def device_for(resources: ResourceSpec) -> torch.device:
    """The device that was asked for, whatever else the process can see.

    Raises:
        ValueError: a GPU was asked for and there is none.
    """
    if resources.gpus <= 0:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ValueError(
            f"resources.gpus is {resources.gpus}, but torch sees no CUDA device here; "
            "install a CUDA build of torch or set resources.gpus=0"
        )
    return torch.device("cuda", torch.cuda.current_device())


CONTEXT_BYTES = 600 * 2**20  # of a process on a GPU, beside what its tensors take


def confine_memory(device: torch.device, resources: ResourceSpec) -> None:
    """Let a run that has a share of a GPU take that share of its memory, and no more.

    What does not fit is out of memory for this run alone, which then goes on with smaller pieces;
    without a bound it would take the memory of the runs beside it.
    """
    if device.type != "cuda" or not 0 < resources.gpus < 1:
        return
    total = torch.cuda.get_device_properties(device).total_memory
    share = resources.gpus - CONTEXT_BYTES / total
    if share <= 0:
        raise ValueError(
            f"resources.gpus is {resources.gpus}: {resources.gpus * total / 2**20:.0f} MiB of this "
            f"GPU, less than a process needs before its first tensor; ask for a larger share"
        )
    torch.cuda.set_per_process_memory_fraction(share, device)


def device_model(device: torch.device) -> str:
    """The device's own name, as 'NVIDIA H200' or the processor's model."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """bfloat16 where it is safe, with float32 parameters; nothing for float32."""
    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)
