"""Which device a run computes on, and in which precision."""

import contextlib
import platform
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from arch_search.spec import ResourceSpec


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
