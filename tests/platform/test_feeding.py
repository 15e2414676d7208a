"""Reading ahead, warming up and compiling change nothing that a run learns."""

from dataclasses import asdict

import numpy as np
import pytest
import torch

from arch_search import train
from arch_search.feeding import feed
from arch_search.journal import read_curve, read_stream
from arch_search.micro_batches import accumulate_gradients
from arch_search.model import build_model
from arch_search.spec import LayerSpec, ModelSpec
from blocks.registry import resolve_options

from .conftest import plan_for, run_one

CPU = torch.device("cpu")


def batches(steps):
    for step in range(steps):
        if step == 5:
            raise OSError("the disk is gone")
        yield step, np.full((2, 3), step)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_steps_come_in_order_and_an_error_at_its_step(ahead):
    seen = []

    def read_all():
        for fed in feed(batches(9), lambda step: np.full(2, step % 2 > 0), CPU, ahead=ahead):
            seen.append((fed.step, fed.tokens.unique().tolist(), fed.resets.tolist()))

    with pytest.raises(OSError, match="the disk is gone"):
        read_all()
    assert seen == [(step, [step], [step % 2 > 0] * 2) for step in range(5)]
    assert [fed.step for fed in feed(batches(4), None, CPU, ahead=ahead)] == [0, 1, 2, 3]


def test_a_run_that_is_fed_ahead_has_the_same_stream_and_losses_to_the_bit(root, monkeypatch):
    plan = plan_for(root)
    plain = run_one(root, plan, plan.runs[0])
    other = type(root)(root.path.parent / "ahead").make()
    (other.path / "data").symlink_to(root.path / "data")
    real = train.feed
    monkeypatch.setattr(train, "feed", lambda *given, ahead: real(*given, ahead=2))
    fed = run_one(other, plan, plan.runs[0])
    assert read_stream(fed) == read_stream(plain)
    assert fed.result()["stream"] == plain.result()["stream"]
    losses = [
        [point.values["train/loss"] for point in read_curve(run) if "train/loss" in point.values]
        for run in (plain, fed)
    ]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_compiled_layers_learn_the_same_and_share_a_graph_by_kind():
    from torch._dynamo.utils import counters

    from arch_search.compiling import compile_layers

    layers = tuple(
        LayerSpec(kind=k, options=asdict(resolve_options(k, {}, width=32)), mlp_width=48)
        for k in ("gated_deltanet", "attention", "gated_deltanet", "attention", "gated_deltanet")
    )
    spec = ModelSpec(layers=layers, width=32, vocabulary=97, tie_embeddings=False)
    tokens = torch.randint(97, (2, 40), generator=torch.Generator().manual_seed(0))

    def step(model):
        loss = accumulate_gradients(model, tokens, 0, "float32")
        gradients = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        return loss, gradients

    plain, compiled = (build_model(spec, seed=0) for _ in range(2))
    expected = step(plain)
    torch._dynamo.reset()
    counters.clear()
    compile_layers(compiled, backend="aot_eager")
    found = step(compiled)
    graphs = counters["stats"]["unique_graphs"]
    assert torch.allclose(found[0], expected[0], rtol=1e-6)
    for a, b in zip(found[1], expected[1], strict=True):
        assert (a - b).norm() <= 1e-5 * (b.norm() + 1e-6)
    step(compiled)
    assert counters["stats"]["unique_graphs"] == graphs  # nothing was compiled again
    assert graphs <= 8  # a few a kind, whatever the number of layers
