"""Every registered block learns real text, alone and in a hybrid, and does so as it always did."""

import json
from pathlib import Path

import pytest
import torch

from arch_search.data import TrainingStream, open_split, prepare
from arch_search.micro_batches import accumulate_gradients
from arch_search.model import build_model
from arch_search.optim import clip_gradients, make_optimiser
from arch_search.spec import LayerSpec, ModelSpec, OptimiserSpec
from blocks.registry import BLOCKS, resolve_options

GOLDEN = Path(__file__).parent / "golden_traces.json"
WIDTH = 32


@pytest.fixture(scope="module")
def stream(prepared):
    split = open_split(prepare("sotu", "bytes", prepared.path), "train")
    return TrainingStream(split, sequence_length=48, batch=4, seed=0)


def model_of(*kinds):
    from dataclasses import asdict

    layers = tuple(
        LayerSpec(kind=k, options=asdict(resolve_options(k, {}, width=WIDTH)), mlp_width=32)
        for k in kinds
    )
    spec = ModelSpec(layers=layers, width=WIDTH, vocabulary=257, tie_embeddings=True)
    return build_model(spec, seed=1)


def train(model, stream, steps):
    optimiser = make_optimiser(
        model, model.declared_parameters(), OptimiserSpec(learning_rate=3e-3)
    )
    losses = []
    for step in range(steps):
        losses.append(
            accumulate_gradients(model, torch.from_numpy(stream.batch(step)), 0, "float32").item()
        )
        clip_gradients(model, 1.0)
        optimiser.step()
        optimiser.zero_grad()
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(BLOCKS))
@pytest.mark.parametrize("where", ["alone", "hybrid"])
def test_two_hundred_steps_lower_the_loss(kind, where, stream):
    kinds = (kind,) if where == "alone" else (kind, "gated_deltanet")
    losses = train(model_of(*kinds), stream, 200)
    first, last = sum(losses[:10]) / 10, sum(losses[-20:]) / 20
    assert last < first - 1.8, (first, last)


@pytest.mark.parametrize("kind", sorted(BLOCKS))
def test_the_first_thirty_steps_are_those_of_the_golden_trace(kind, stream, request):
    """A refactoring leaves the trace equal. Rewrite it on purpose with --update-golden."""
    losses = train(model_of(kind), stream, 30)
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if request.config.getoption("--update-golden"):
        golden[kind] = [round(loss, 6) for loss in losses]
        GOLDEN.write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n")
    assert losses == pytest.approx(golden[kind], rel=2e-4)
