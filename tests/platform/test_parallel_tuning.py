"""A tuned kernel's configurations compile side by side, and the same one is chosen."""

import threading

import pytest

from arch_search.parallel_tuning import compiled_together

triton = pytest.importorskip("triton")
modes = pytest.importorskip("triton.runtime._async_compile")
from triton.runtime.autotuner import Autotuner, OutOfResources  # noqa: E402

ALL_AT_ONCE = 4


class Kernel:
    """Stands in for a jitted kernel, which needs a GPU: compiles as one does, and keeps a record.

    Each compilation waits for the others, so that one behind the other would not end.
    """

    def __init__(self, broken=()):
        self.broken, self.compiled, self.timed = broken, {}, []
        self.together = threading.Barrier(ALL_AT_ONCE)

    def fn(self):
        """What the autotuner takes a kernel's name from."""

    def run(self, *args, BLOCK, warmup=False, **options):
        def compile_it():
            if warmup:
                self.together.wait(timeout=20)
            if BLOCK in self.broken:
                raise OutOfResources(1, 2, "shared memory")
            return threading.get_ident()

        mode = modes.active_mode.get()
        if mode is not None:
            mode.submit(BLOCK, compile_it, lambda at: self.compiled.update({BLOCK: at}), str)
        elif BLOCK not in self.compiled:
            self.compiled[BLOCK] = compile_it()
        if not warmup:
            self.timed.append(BLOCK)


def tuner_of(kernel):
    def seconds_of(call, quantiles):
        call()
        return [abs(kernel.timed[-1] - 64)] * 3

    configs = [triton.Config({"BLOCK": 16 * 2**i}) for i in range(ALL_AT_ONCE)]
    kernel.fn = Kernel.fn
    return Autotuner(
        kernel, [], configs, [], None, None, do_bench=seconds_of, cache_results=True
    )  # fmt: skip


@pytest.mark.parametrize("broken", [(), (16,)])
def test_configurations_compile_side_by_side_and_are_timed_after(broken):
    kernel = Kernel(broken)
    tuner = tuner_of(kernel)
    before = Autotuner.run, Autotuner.check_disk_cache
    with compiled_together(ALL_AT_ONCE):
        tuner.run()
    assert (Autotuner.run, Autotuner.check_disk_cache) == before
    expected = [16, 32, 64, 128][len(broken) :]
    assert sorted(kernel.compiled) == expected
    assert len(set(kernel.compiled.values()) - {threading.get_ident()}) == len(expected)
    assert kernel.timed == [*expected, 64]
    assert tuner.best_config.kwargs == {"BLOCK": 64}


def test_without_it_they_compile_here_one_by_one():
    kernel = Kernel()
    tuner_of(kernel).run()
    assert set(kernel.compiled.values()) == {threading.get_ident()}
    assert kernel.timed == [16, 32, 64, 128, 64]


def test_where_triton_cannot_nothing_changes(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "triton.runtime._async_compile", None)
    before = Autotuner.run
    with compiled_together(2):
        assert Autotuner.run is before
