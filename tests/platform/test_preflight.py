"""What is refused before a run starts: wrong starts, backends that do not work where runs are."""

import math

import pytest
import torch

from arch_search.model import build_model
from arch_search.preflight import preflight
from arch_search.run_settings import ResourceSpec
from arch_search.start_check import check_start

from .conftest import plan_for


def test_every_arm_of_a_plan_passes_and_says_what_it_ran_on(root):
    used = preflight(str(root.path), plan_for(root).arms, ResourceSpec(backends={"m2rnn": "loop"}))
    assert used["m2rnn"] == ["loop"]
    assert used["gated_delta"] == ["chunked"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the backend can run here")
def test_a_backend_asked_for_by_name_that_does_not_work_names_the_arm(root):
    resources = ResourceSpec(backends={"gated_delta": "fla"})
    with pytest.raises(ValueError, match=r"arm .*gated_delta cannot run on .*'fla'.*need a GPU"):
        preflight(str(root.path), plan_for(root).arms, resources)


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
