"""Processes of one node warm up one at a time, and together once it has been done."""

import multiprocessing
import time
from dataclasses import replace

import torch

from arch_search.kernel_cache import alone_on_this_node
from arch_search.model import LanguageModel
from arch_search.spec import ResourceSpec
from arch_search.warm_up import _what


def _warm_up(cache, what, seconds, spans):
    begun = time.monotonic()
    with alone_on_this_node(cache, what):
        entered = time.monotonic()
        time.sleep(seconds)
    spans.put((entered - begun, entered, time.monotonic()))


def _together(cache, names, seconds):
    """The seconds in which each of some processes was inside, by the time of entering."""
    context = multiprocessing.get_context("fork")
    spans = context.Queue()
    processes = [
        context.Process(target=_warm_up, args=(cache, name, seconds, spans)) for name in names
    ]
    for process in processes:
        process.start()
    found = sorted((spans.get(timeout=30) for _ in names), key=lambda span: span[1])
    for process in processes:
        process.join()
    return [(entered, left) for _, entered, left in found]


def _overlap(one, other):
    return other[0] < one[1]


def test_what_is_new_is_warmed_up_by_one_and_then_by_all_at_once(tmp_path):
    first, second, third = _together(tmp_path, ["kernels"] * 3, 0.4)
    assert not _overlap(first, second)  # the others waited for the first
    assert _overlap(second, third)  # and then for nobody
    once_more = _together(tmp_path, ["kernels"] * 2, 0.4)
    assert _overlap(*once_more)


def test_unlike_kernels_are_never_tuned_at_the_same_time(tmp_path):
    one, other = _together(tmp_path, ["these", "those"], 0.3)
    assert not _overlap(one, other)


def test_a_warm_up_that_failed_is_not_taken_for_done(tmp_path):
    try:
        with alone_on_this_node(tmp_path, "kernels"):
            raise RuntimeError("out of memory")
    except RuntimeError:
        pass
    first, second = _together(tmp_path, ["kernels"] * 2, 0.3)
    assert not _overlap(first, second)


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
