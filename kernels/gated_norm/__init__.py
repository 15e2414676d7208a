"""Value residual, SiLU gate and RMSNorm behind a recurrence: whether one kernel can do them."""

import importlib.util

import torch
from torch import Tensor

from kernels.compiling import constant

LARGEST = 8192  # channels that one program holds, to take their norm
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@constant
def _kernels_run_on(device: str) -> bool:
    """Whether Triton is there and its kernels, or its interpreter, run on such a device."""
    if importlib.util.find_spec("triton") is None:
        return False
    if device == "cuda":
        return torch.cuda.get_device_capability() >= (8, 0)
    if device == "cpu":
        from triton import knobs

        return bool(knobs.runtime.interpret)
    return False


def can_fuse(x: Tensor, *others: Tensor | None) -> bool:
    """Whether `in_one` takes these tensors, of which some may be missing."""
    given = [x, *(other for other in others if other is not None)]
    return all(t.dtype in DTYPES for t in given) and _kernels_run_on(x.device.type)
