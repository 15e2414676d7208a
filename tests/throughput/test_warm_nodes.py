"""Processes of one node warm up one at a time, and together once it has been done."""

import contextlib
import multiprocessing
import threading
from dataclasses import replace

import torch

from arch_search.kernel_cache import alone_on_this_node
from arch_search.model import LanguageModel
from arch_search.run_settings import ResourceSpec
from arch_search.warm_up import _what

CONTEXT = multiprocessing.get_context("fork")
SECONDS = 60.0  # to meet in, on a machine that has other things to do


def _meet(cache, what, barrier, met):
    """Say whether all processes of `barrier` were inside at once."""
    with alone_on_this_node(cache, what):
        try:
            barrier.wait()
        except threading.BrokenBarrierError:
            met.put(False)
        else:
            met.put(True)


@contextlib.contextmanager
def _two(cache, names, seconds=SECONDS):
    """Two processes that want to meet inside; gives a function that says whether each did."""
    barrier, met = CONTEXT.Barrier(2, timeout=seconds), CONTEXT.Queue()
    processes = [CONTEXT.Process(target=_meet, args=(cache, n, barrier, met)) for n in names]
    for process in processes:
        process.start()
    yield lambda: [met.get(timeout=2 * SECONDS) for _ in processes]
    for process in processes:
        process.join()


def test_what_was_warmed_up_before_waits_for_nobody(tmp_path):
    with alone_on_this_node(tmp_path, "kernels"):
        pass
    with _two(tmp_path, ["kernels"] * 2) as ask:
        assert ask() == [True, True]


def test_unlike_kernels_are_never_tuned_at_the_same_time(tmp_path):
    with _two(tmp_path, ["these", "those"], seconds=1.0) as ask:
        assert ask() == [False, False]


def test_a_warm_up_that_failed_is_not_taken_for_done(tmp_path):
    with contextlib.suppress(RuntimeError), alone_on_this_node(tmp_path, "kernels"):
        raise RuntimeError("out of memory")
    assert not (tmp_path / "warm" / "kernels").exists()


def test_equal_kernels_have_one_name_and_others_another(plan):
    with torch.device("meta"):
        models = [LanguageModel(arm.model) for arm in plan.arms]
    tokens, resources = torch.zeros(4, 33, dtype=torch.int64), ResourceSpec()
    name = _what(models[0], tokens, 0, "bfloat16", resources)
    assert name == _what(models[0], tokens + 1, 4, "bfloat16", resources)
    others = [
        _what(models[1], tokens, 0, "bfloat16", resources),
        _what(models[0], tokens[:, :17], 0, "bfloat16", resources),
        _what(models[0], tokens, 2, "bfloat16", resources),
        _what(models[0], tokens, 0, "float32", resources),
        _what(models[0], tokens, 0, "bfloat16", replace(resources, compile=False)),
    ]
    assert len({name, *others}) == 6
