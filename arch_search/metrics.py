"""What a step costs: tokens a second without what is not training, and the peak memory."""

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch


@dataclass(slots=True)
class Stopwatch:
    """Seconds spent training; stands still inside `paused()` (validation, checkpoints).

    On CUDA the caller synchronises before reading it.
    """

    seconds: float = 0.0
    _since: float = field(default_factory=time.perf_counter)

    def read(self) -> float:
        """Seconds of training up to now."""
        return self.seconds + time.perf_counter() - self._since

    @contextlib.contextmanager
    def paused(self):
        """Leave what happens inside out of the count."""
        self.seconds = self.read()
        try:
            yield
        finally:
            self._since = time.perf_counter()


class PeakMemory:
    """The highest memory while it counts: the allocator's on CUDA, the process's on a CPU."""

    def __init__(self, device: torch.device, highest_gib: float = 0.0) -> None:
        self.device = device
        self._highest = highest_gib
        self._restart()

    def gib(self) -> float:
        """The peak in GiB, what was measured before a pause or a resumption included."""
        if self.device.type == "cuda":
            now = torch.cuda.max_memory_allocated(self.device)
        else:
            now = _process_peak()
        self._highest = max(self._highest, now / 2**30)
        return self._highest

    @contextlib.contextmanager
    def paused(self):
        """Leave what happens inside out of the peak."""
        self.gib()
        try:
            yield
        finally:
            self._restart()

    def _restart(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:  # Linux forgets the process's own high-water mark when asked to
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")


def _process_peak() -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return psutil.Process().memory_info().rss
