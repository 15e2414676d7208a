"""A forward pass as a CUDA graph: what the device takes for it, without what its launches cost."""

from collections.abc import Callable

import torch
from torch import Tensor

from arch_search.step_graphs import CudaRecorder, Recorder


def as_graph(
    step: Callable[[], Tensor], device: torch.device, record: Recorder | None = None
) -> tuple[Callable[[], None] | None, str]:
    """What repeats a step in one launch; or None, and why it does not (nothing off the GPU).

    Args:
        step: has run before, so that its kernels are compiled. Returns tokens, which the graph has
            to give as well.
        record: as of `StepGraphs`; CUDA's where nothing else is given.
    """
    if record is None:
        if device.type != "cuda":
            return None, ""
        record = CudaRecorder()
    expected = step()
    try:
        found, replay = record(step)
        replay()
        same = torch.equal(found, expected)
    except RuntimeError as error:
        said = str(error).strip().splitlines() or [""]
        return None, f"{type(error).__name__}: {said[0]}"
    return (replay, "") if same else (None, "its graph gives other tokens")
