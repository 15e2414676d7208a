"""What a training step reads, on the device before the step asks for it."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

AHEAD = 2  # steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Fed:
    """One step's batch, as it was read and on the device."""

    step: int
    batch: np.ndarray
    tokens: Tensor
    resets: Tensor | None


def feed(
    batches: Iterator[tuple[int, np.ndarray]],
    resets: Callable[[int], np.ndarray] | None,
    device: torch.device,
    *,
    ahead: int,
) -> Iterator[Fed]:
    """Each step's batch in order; with `ahead`, a thread reads and copies so many steps early.

    Copies start from pinned memory and wait for nothing. What is fed does not depend on `ahead`.
    An exception of the thread is raised here, at its step.
    """

    def fetch() -> Fed | None:
        found = next(batches, None)
        if found is None:
            return None
        step, batch = found
        starts = None if resets is None else on_device(resets(step), device)
        return Fed(step=step, batch=batch, tokens=on_device(batch, device), resets=starts)

    if ahead == 0:
        while (fed := fetch()) is not None:
            yield fed
        return
    pool = ThreadPoolExecutor(1, thread_name_prefix="feed")
    waiting: deque[Future[Fed | None]] = deque(pool.submit(fetch) for _ in range(ahead))
    try:
        while (fed := waiting.popleft().result()) is not None:
            waiting.append(pool.submit(fetch))
            yield fed
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def on_device(array: np.ndarray, device: torch.device) -> Tensor:
    """A copy on the device, from pinned memory and without waiting; on a CPU the array itself."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
