"""What is refused before a run starts: wrong starts, backends that do not work where runs are."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from arch_search.errors import UsageError
from arch_search.model import build_model
from arch_search.preflight import check_backends, preflight
from arch_search.run_settings import ResourceSpec
from arch_search.scheduling import driver
from arch_search.scheduling.session import WorkerDied
from arch_search.start_check import check_start
from arch_search.storage import RunFolder
from kernels.backends import asked_for

from .conftest import plan_for

# a session whose worker is this process
HERE: Any = SimpleNamespace(call=lambda _, *arguments, resources: preflight(*arguments))


def test_every_arm_of_a_plan_passes_and_says_what_it_ran_on(root):
    resources = ResourceSpec(backends={"m2rnn": "loop"})
    checked = preflight(str(root.path), plan_for(root).arms, resources)
    assert checked.broken is None
    assert checked.used["m2rnn"] == ["loop"]
    assert checked.used["gated_delta"] == ["chunked"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the backend can run here")
def test_a_backend_asked_for_by_name_that_does_not_work_names_the_arm(root):
    resources = ResourceSpec(backends={"gated_delta": "fla"})
    with pytest.raises(ValueError, match=r"arm .*gated_delta cannot run on .*'fla'.*need a GPU"):
        preflight(str(root.path), plan_for(root).arms, resources)


def test_backends_alone_are_checked_by_each_kind_of_layer_once(root, monkeypatch):
    ran = []
    monkeypatch.setattr(
        "arch_search.preflight._run", lambda model, arm, *_: ran.append((arm.name, model))
    )
    arms = plan_for(root).arms
    check_backends(str(root.path), arms, ResourceSpec())
    assert ran == []
    check_backends(str(root.path), arms, ResourceSpec(backends={"m2rnn": "loop"}))
    assert [(name, [layer.kind for layer in model.spec.layers]) for name, model in ran] == [
        ("baseline", ["gated_deltanet", "attention"]),
        ("m2rnn-1-first", ["m2rnn"]),
    ]
    assert all(p.isfinite().all() for _, model in ran for p in model.parameters())


def test_what_else_fails_beforehand_is_left_to_the_cells(root, monkeypatch):
    def fail(*_):
        assert asked_for("m2rnn", "auto") == "loop"
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr("arch_search.preflight._run", fail)
    check_backends(str(root.path), plan_for(root).arms, ResourceSpec(backends={"m2rnn": "loop"}))
    assert asked_for("m2rnn", "auto") == "auto"


@pytest.mark.skipif(torch.cuda.is_available(), reason="the layer can run here")
def test_a_layer_of_fla_is_refused_off_a_gpu_by_either_check_and_by_the_driver(root):
    pytest.importorskip("fla.layers")
    layer = "model.blocks={gla: {kind: 'fla:GatedLinearAttention', num_heads: 2}}"
    plan = plan_for(root, layer, "model.pattern=gdn gla attn")
    said = r"arm baseline: block fla:GatedLinearAttention: a layer of .*; its kernels need a GPU"
    for check in (check_backends, preflight):
        with pytest.raises(ValueError, match=said):
            check(str(root.path), plan.arms, ResourceSpec())
    with pytest.raises(UsageError, match=f"before any run started: {said}"):
        driver._preflight(HERE, root, plan, driver.EXECUTE)


def plan_of_four(root):
    """Arms whose layers differ from one to the next."""
    plan = plan_for(root, "resources.backends={m2rnn: loop}")
    last = plan.arms[-1]

    def widened(width):
        layers = tuple(replace(layer, mlp_width=width) for layer in last.model.layers)
        return replace(last, name=f"wide-{width}", model=replace(last.model, layers=layers))

    arms = (*plan.arms, widened(48), widened(64))
    runs = (replace(plan.runs[0], arm=arm.name, hash=f"{i:016x}") for i, arm in enumerate(arms))
    return replace(plan, arms=arms, runs=tuple(runs))


class _Breaking:
    """A step that fails in these arms as a kernel does that reads where it must not."""

    def __init__(self, monkeypatch, *arms):
        self.arms, self.tried = arms, []
        monkeypatch.setattr("arch_search.preflight._run", self)

    def __call__(self, model, arm, *_):
        self.tried.append(arm.name)
        if arm.name in self.arms:
            raise RuntimeError("CUDA error: an illegal memory access\nmore of it")


def test_an_arm_whose_kernels_break_is_named_and_the_others_are_tried(root, monkeypatch, caplog):
    plan = plan_of_four(root)
    names = [arm.name for arm in plan.arms]
    twin = replace(plan.arms[1], name="twin"), replace(plan.runs[1], arm="twin")
    plan = replace(plan, arms=(*plan.arms, twin[0]), runs=(*plan.runs, twin[1]))
    breaking = _Breaking(monkeypatch, names[1])
    driver._preflight(HERE, root, plan, driver.EXECUTE)
    assert breaking.tried == names
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warned == [
        f"tried before any run, arm {names[1]} failed: RuntimeError: CUDA error: an illegal memory "
        "access. Its runs are tried nonetheless"
    ]


def test_arms_whose_runs_are_complete_are_not_tried_again(root, monkeypatch):
    plan = plan_of_four(root)
    names = [arm.name for arm in plan.arms]
    complete = {plan.runs[0].hash, plan.runs[2].hash}
    monkeypatch.setattr(RunFolder, "is_complete", lambda run, _: run.path.name in complete)
    tried = _Breaking(monkeypatch).tried
    driver._preflight(HERE, root, plan, driver.EXECUTE)
    assert tried == [names[1], names[3]]


def test_a_worker_that_dies_of_a_kernel_leaves_the_arms_to_their_runs(root, caplog):
    def die(*_, resources):
        del resources
        raise WorkerDied("its worker died")

    session: Any = SimpleNamespace(call=die)
    driver._preflight(session, root, plan_of_four(root), driver.EXECUTE)
    (warned,) = (r.getMessage() for r in caplog.records if r.levelname == "WARNING")
    assert "each by itself" in warned


def test_where_no_arm_works_nothing_starts(root, monkeypatch):
    plan = plan_of_four(root)
    breaking = _Breaking(monkeypatch, *(arm.name for arm in plan.arms))
    with pytest.raises(
        RuntimeError, match=r"arm .* failed: RuntimeError: CUDA error.*nor did any other"
    ):
        driver._preflight(HERE, root, plan, driver.EXECUTE)
    assert len(breaking.tried) == driver.MAX_BROKEN


def test_a_misspelt_kernel_or_backend_is_refused_when_the_file_is_read():
    with pytest.raises(ValueError, match="unknown kernel 'gated_dleta'; expected one of"):
        ResourceSpec(backends={"gated_dleta": "fla"})
    with pytest.raises(ValueError, match="backend of ssd is 'mamba'; expected one of auto, loop"):
        ResourceSpec(backends={"ssd": "mamba"})


@pytest.mark.parametrize("wrong", [math.nan, 0.0, 3.0])
def test_a_parameter_that_does_not_start_as_declared_is_named(root, wrong):
    model = build_model(plan_for(root).arms[0].model, seed=0)
    check_start(model)
    with torch.no_grad():
        if wrong == 3.0:
            model.layers[1].mixer.output.weight.mul_(wrong)
        else:
            model.layers[1].mixer.output.weight.fill_(wrong)
    with pytest.raises(ValueError, match=r"layers\.1\.mixer\.output\.weight \(.*declares"):
        check_start(model)
