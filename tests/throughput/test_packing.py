"""Runs that share a GPU: how many, with how much memory, what they gain, and what is said of it."""

import json
import threading
import time
from dataclasses import dataclass, replace
from multiprocessing import Pipe

import pytest
import torch

from arch_search.compare import compare
from arch_search.devices import confine_memory
from arch_search.errors import UsageError
from arch_search.run_settings import ResourceSpec
from arch_search.scheduling.packing import packed_resources
from arch_search.scheduling.session import fits
from arch_search.throughput.memory import runs_that_fit
from arch_search.throughput.packing import PackedRun, _answer, _begin, _serve, measure_packing
from tests.conftest import Planted, write_planted


@pytest.mark.parametrize(
    "share, count", [(0.5, 2), (0.25, 4), (1 / 3, 3), (0.333, 3), (0.4, 2), (0.1, 10), (0.07, 14)]
)
def test_a_share_lies_on_one_gpu_whole(share, count):
    assert fits(share) == count


@dataclass
class Cluster:
    """What a session says of a cluster, and of the memory measured there."""

    cards: int
    cpus: float
    memory_holds: int

    def gpus(self):
        return self.cards

    def capacity(self, resources):
        assert resources.gpus == 0
        return int(self.cpus / resources.cpus)

    def call(self, _function, _arms, _resources, *, resources):
        assert resources.gpus == 1
        return self.memory_holds


@pytest.mark.parametrize(
    "cluster, cpus, expected",
    [
        (Cluster(1, 16, 40), 1, 1 / 16),  # processors bound it
        (Cluster(1, 16, 6), 1, 1 / 6),  # memory does
        (Cluster(4, 16, 40), 1, 1 / 4),
        (Cluster(1, 16, 40), 8, 1 / 2),
        (Cluster(1, 2, 40), 4, 1.0),
    ],
)
def test_packed_runs_get_the_share_that_memory_and_processors_allow(plan, cluster, cpus, expected):
    packed = replace(plan, resources=ResourceSpec(gpus=1, cpus=cpus, packed=True))
    assert packed_resources(cluster, packed).gpus == expected


def test_what_asks_for_no_packing_keeps_its_resources(plan):
    for resources in (ResourceSpec(), ResourceSpec(gpus=1), ResourceSpec(gpus=0.25)):
        planned = replace(plan, resources=resources)
        assert packed_resources(Cluster(1, 8, 4), planned) == resources


def test_speeds_of_runs_that_shared_a_gpu_are_not_ranked(tmp_path):
    root = write_planted(Planted(root=tmp_path / "root", seeds=3))
    metric = "throughput/tokens_per_second"
    assert compare("planted", metric=metric, root=root).arms
    run = root.run(root.experiment("planted").plan().runs[1].hash)
    result = run.result()
    result["environment"]["device_share"] = 0.1
    (run.path / "result.json").write_text(json.dumps(result))
    with pytest.raises(UsageError, match=r"not to be ranked: runs shared a GPU \(they had 0\.1"):
        compare("planted", metric=metric, root=root)
    assert compare("planted", root=root).metric == "val/bits_per_byte"


@pytest.mark.services
def test_the_gain_is_that_of_the_same_processes_one_by_one_and_together(plan):
    runs = [
        PackedRun(arm=arm, seed=0, batch=2, resources=ResourceSpec(cpus=1)) for arm in plan.arms
    ]
    found = measure_packing(runs, steps=2, rounds=2)
    assert found["arms"] == ["baseline", "recurrent"]
    assert len(found["alone_seconds"]) == len(found["packed_seconds"]) == 2
    ratios = [a / b for a, b in zip(found["alone_seconds"], found["packed_seconds"], strict=True)]
    assert min(ratios) <= found["gain"] <= max(ratios)
    assert found["busy"] is None


def test_the_first_of_each_kind_of_kernels_warms_up_alone(plan):
    """Five runs of two arms: two begin by themselves, and only then the other three."""
    one, other = plan.arms
    runs = [
        PackedRun(arm=arm, seed=i, batch=2, resources=ResourceSpec())
        for i, arm in enumerate((one, one, other, one, other))
    ]
    pairs = [Pipe() for _ in runs]
    begun: list[set[int]] = []

    def serve():
        waiting = set(range(len(runs)))
        while waiting:
            ready = {i for i in waiting if pairs[i][1].poll(0.05)}
            if not ready:
                continue
            time.sleep(0.1)  # for others that were told at the same time
            ready = {i for i in waiting if pairs[i][1].poll()}
            begun.append(ready)
            for i in ready:
                pairs[i][1].recv()
                pairs[i][1].send({"seconds": 0.0, "number": i})
            waiting -= ready

    thread = threading.Thread(target=serve)
    thread.start()
    ready = _begin(runs, [ours for ours, _ in pairs])
    thread.join()
    assert begun == [{0}, {2}, {1, 3, 4}]
    assert [found["number"] for found in ready] == [0, 1, 2, 3, 4]


def test_a_run_that_cannot_start_says_why(plan):
    layer = replace(plan.arms[0].model.layers[0], kind="no_such")
    bad = replace(plan.arms[0], model=replace(plan.arms[0].model, layers=(layer,)))
    ours, theirs = Pipe()
    ours.send(("begin", 0))
    _serve(PackedRun(arm=bad, seed=0, batch=2, resources=ResourceSpec()), theirs)
    with pytest.raises(RuntimeError, match="a run failed: ValueError: unknown block 'no_such'"):
        _answer(ours, 1.0)


@pytest.mark.gpu
def test_memory_beyond_the_share_is_out_of_memory_for_this_run_alone():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = torch.device("cuda", 0)
    total = torch.cuda.get_device_properties(device).total_memory
    try:
        confine_memory(device, ResourceSpec(gpus=0.1))
        kept = torch.empty(int(0.05 * total), dtype=torch.uint8, device=device)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(int(0.08 * total), dtype=torch.uint8, device=device)
        del kept
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


@pytest.mark.gpu
def test_the_number_of_runs_that_fit_is_measured(plan):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    assert runs_that_fit(plan.arms, ResourceSpec(gpus=1)) > 10
