"""Reading ahead of the training loop."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Protocol

import numpy as np

from arch_search.errors import UsageError

AHEAD = 4  # batches in flight for each worker


class Batches(Protocol):
    """What can be read ahead: a batch for every step, whichever is asked for first."""

    def batch(self, step: int) -> np.ndarray: ...


def loader(
    stream: Batches, *, first_step: int, last_step: int, workers: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Batches of the steps `range(first_step, last_step)` in order, each with its step.

    With `workers` threads, batches are read ahead; they are the same ones. A batch is a gather
    from memory-mapped pages, and NumPy and page faults release the interpreter's lock, so threads
    suffice, and no process has to be started, killed or waited for. An exception in a worker is
    raised here, at its step. Closing the iterator, or dropping it, ends the threads.

    Raises:
        UsageError: fewer than 0 workers.
    """
    if workers < 0:
        raise UsageError(f"loader_workers must be 0 or more, not {workers}")
    steps = range(first_step, last_step)
    if workers == 0:
        return ((step, stream.batch(step)) for step in steps)
    return _read_ahead(stream, iter(steps), workers)


def _read_ahead(
    stream: Batches, steps: Iterator[int], workers: int
) -> Iterator[tuple[int, np.ndarray]]:
    pool = ThreadPoolExecutor(workers, thread_name_prefix="loader")
    pending: deque[tuple[int, Future[np.ndarray]]] = deque()
    try:
        for step in islice(steps, AHEAD * workers):
            pending.append((step, pool.submit(stream.batch, step)))
        while pending:
            step, batch = pending.popleft()
            for later in islice(steps, 1):
                pending.append((later, pool.submit(stream.batch, later)))
            yield step, batch.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
