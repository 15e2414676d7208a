"""Runs that share a GPU: how many, with how much memory, what they gain, and what is said of it."""

import json
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import Pipe
from types import SimpleNamespace

import pytest
import torch

from arch_search.compare import compare
from arch_search.devices import confine_memory
from arch_search.errors import UsageError
from arch_search.run_settings import ResourceSpec
from arch_search.scheduling.packing import packed_resources
from arch_search.scheduling.session import fits
from arch_search.storage import Root
from arch_search.throughput import memory
from arch_search.throughput import packing as lane
from arch_search.throughput.memory import runs_that_fit
from arch_search.throughput.packing import PackedRun, _answer, _begin, _serve, measure_packing
from kernels.backends import ask_for, asked_for
from kernels.errors import BackendUnavailable
from tests.conftest import Planted, write_planted

GATED_BY_FLA = {"gated_delta": "fla"}  # needs a GPU


@pytest.fixture
def _nothing_asked():
    yield
    ask_for({})


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

    def call(self, _function, _root, _arms, _resources, *, resources):
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
def test_packed_runs_get_the_share_that_memory_and_processors_allow(
    plan, tmp_path, cluster, cpus, expected
):
    packed = replace(plan, resources=ResourceSpec(gpus=1, cpus=cpus, packed=True))
    assert packed_resources(cluster, Root(tmp_path), packed).gpus == expected


def test_what_asks_for_no_packing_keeps_its_resources(plan, tmp_path):
    for resources in (ResourceSpec(), ResourceSpec(gpus=1), ResourceSpec(gpus=0.25)):
        planned = replace(plan, resources=resources)
        assert packed_resources(Cluster(1, 8, 4), Root(tmp_path), planned) == resources


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


@pytest.mark.usefixtures("_nothing_asked")
def test_a_run_is_on_the_backends_and_tuned_configurations_that_it_asks_for(
    plan, tmp_path, monkeypatch
):
    seen = []

    def build(_arm, _device, *, tuned, **_):
        seen.append((asked_for("m2rnn", "auto"), tuned))
        raise EOFError

    monkeypatch.setattr(lane, "Contender", build)
    ours, theirs = Pipe()
    ours.send(("begin", 0))
    resources = ResourceSpec(backends={"m2rnn": "loop"})
    _serve(PackedRun(arm=plan.arms[1], seed=0, batch=2, resources=resources), theirs, tmp_path)
    assert seen == [("loop", tmp_path)]


@pytest.mark.usefixtures("_nothing_asked")
@pytest.mark.parametrize("wrong", [BackendUnavailable, UsageError])
def test_what_a_worker_is_asked_for_wrongly_is_wrong_input(plan, monkeypatch, wrong):
    def build(*_, **__):
        raise wrong("there is no such thing here")

    monkeypatch.setattr(lane, "Contender", build)
    ours, theirs = Pipe()
    ours.send(("begin", 0))
    _serve(PackedRun(arm=plan.arms[1], seed=0, batch=2, resources=ResourceSpec()), theirs)
    with pytest.raises(UsageError, match="arm recurrent: there is no such thing here"):
        _answer(ours, 1.0)


def test_memory_is_measured_on_the_kernels_of_the_runs(plan, tmp_path, monkeypatch):
    """On a CPU, with the measurement itself left out."""
    seen = []

    def reserved(_arm, _resources, _device, tuned):
        seen.append((asked_for("m2rnn", "auto"), tuned))
        if len(seen) > len(plan.arms):
            raise BackendUnavailable("not here")
        return 2**30

    monkeypatch.setattr(memory, "device_for", lambda _resources: torch.device("cpu"))
    monkeypatch.setattr(memory, "_reserved", reserved)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=2**35)
    )
    resources = ResourceSpec(gpus=1, backends={"m2rnn": "loop"})
    assert runs_that_fit(str(tmp_path), plan.arms, resources) > 1
    assert seen == [("loop", tmp_path / "tuned")] * len(plan.arms)
    with pytest.raises(UsageError, match="not here"):
        runs_that_fit(str(tmp_path), plan.arms, resources)
    assert asked_for("m2rnn", "auto") == "auto"


@pytest.mark.services
@pytest.mark.skipif(torch.cuda.is_available(), reason="the backend can run here")
def test_what_cannot_run_here_is_one_line_and_the_record_before_stays(file, packing, kept):
    code, out, err = packing(file, "--json", f"resources.backends={GATED_BY_FLA}")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "arm baseline: gated_delta cannot run on the backend 'fla'" in err
    assert kept.read_text() == "{}"


def test_tuned_configurations_that_are_not_kept_are_refused_before_any_process(
    file, packing, kept, monkeypatch
):
    monkeypatch.setattr(lane, "measure_packing", None)
    code, out, err = packing(file, "resources.tuned=nosuch")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "resources.tuned: 'nosuch' is not in" in err
    assert kept.read_text() == "{}"


def test_what_went_wrong_stands_on_stderr_beside_json(file, packing, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("a run gave no answer")

    monkeypatch.setattr(lane, "measure_packing", fail)
    code, out, err = packing(file, "--json")
    assert (code, out, err) == (1, "", "arch-search: a run gave no answer\n")


@pytest.fixture
def packing(monkeypatch, cli, tmp_path):
    monkeypatch.setenv("ARCH_SEARCH_ROOT", str(tmp_path))
    return partial(cli, "bench", "packing", "--runs", 2, "--steps", 1, "--rounds", 2)


@pytest.fixture
def kept(tmp_path):
    """A record that is there already."""
    path = tmp_path / "throughput" / "small-packing.json"
    path.parent.mkdir()
    path.write_text("{}")
    return path


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
def test_the_number_of_runs_that_fit_is_measured(plan, tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    assert runs_that_fit(str(tmp_path), plan.arms, ResourceSpec(gpus=1)) > 10
