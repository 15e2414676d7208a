"""Compiles all configurations of a tuned Triton kernel at once, in threads, before they are timed.

Triton's autotuner compiles and times one configuration after the other: minutes on a cold node, in
which a GPU waits for one processor. Only what is compiled when changes here, not what is chosen.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

log = logging.getLogger(__name__)


@contextlib.contextmanager
def compiled_together(threads: int) -> Iterator[None]:
    """Kernels that are tuned within it compile in so many threads.

    Where Triton is not installed or has no compilation in threads, nothing changes. A configuration
    that does not compile is left to the autotuner, which meets it again and knows what to do.
    """
    try:
        from triton.runtime._async_compile import AsyncCompileMode, active_mode
        from triton.runtime.autotuner import Autotuner
    except ImportError:
        yield
        return
    run, from_disk = Autotuner.run, Autotuner.check_disk_cache
    calls: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = {}  # by autotuner: what it runs on

    def noted_run(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls[id(self)] = args, kwargs
        try:
            return run(self, *args, **kwargs)
        finally:
            calls.pop(id(self), None)

    def compiled_from_disk(
        self: Any, tuning_key: Any, configs: Any, bench_fn: Callable[[], None]
    ) -> Any:
        def compile_and_time() -> None:
            args, kwargs = calls[id(self)]
            if active_mode.get() is None:
                _compile(self, configs, args, kwargs)
            bench_fn()

        return from_disk(self, tuning_key, configs, compile_and_time)

    def _compile(tuner: Any, configs: Any, args: Any, kwargs: Any) -> None:
        pool = ThreadPoolExecutor(threads)
        with pool, AsyncCompileMode(pool, ignore_errors=True):
            for config in configs:
                try:
                    tuner.fn.run(*args, **{**kwargs, **config.all_kwargs(), "warmup": True})
                except Exception as error:
                    log.debug("%s of %s does not compile: %s", config, tuner, error)

    Autotuner.run, Autotuner.check_disk_cache = noted_run, compiled_from_disk
    try:
        yield
    finally:
        Autotuner.run, Autotuner.check_disk_cache = run, from_disk
