"""A mixture of experts as the channel mixer of a model: counted, planned, trained."""

from pathlib import Path

import pytest
import torch

from arch_search.experiment import load
from arch_search.micro_batches import accumulate_gradients
from arch_search.model import build_model, count_model
from arch_search.optim import make_optimiser
from arch_search.resolve import name_model
from arch_search.spec import ExpertsSpec, LayerSpec, ModelSpec, OptimiserSpec

FIRST = Path(__file__).parents[2] / "experiments" / "first_ablation.yaml"


def model_spec(experts: ExpertsSpec | None) -> ModelSpec:
    layer = LayerSpec(kind="gated_deltanet", options={}, mlp_width=8, experts=experts)
    return ModelSpec(layers=(layer, layer), width=16, vocabulary=32, tie_embeddings=True)


def test_counts_tell_what_one_token_uses():
    plain, mixed = (
        count_model(model_spec(e), 64) for e in (None, ExpertsSpec(count=6, active=2, width=4))
    )
    expert, router = 3 * 16 * 4, 16 * 6
    assert plain.active_parameters == plain.parameters
    assert mixed.parameters - plain.parameters == 2 * (6 * expert + router)
    assert mixed.parameters - mixed.active_parameters == 2 * 4 * expert
    flops = mixed.forward_flops_per_token - plain.forward_flops_per_token
    assert flops == 2 * 2 * (2 * expert + router)


def test_the_routers_part_of_the_loss_reaches_the_router():
    """With one sequence's tokens all alike, only the balance and z-losses move an unused expert."""
    model = build_model(model_spec(ExpertsSpec(count=6, active=2, width=4)), seed=0)
    tokens = torch.zeros(2, 9, dtype=torch.int64)
    accumulate_gradients(model, tokens, 0, "float32")
    router = model.get_parameter("layers.0.mlp.router.weight")
    assert router.grad is not None
    assert (router.grad.abs().sum(dim=1) > 0).all()


def test_fifty_steps_lower_the_loss():
    model = build_model(model_spec(ExpertsSpec(count=6, active=2, width=4)), seed=0)
    optimiser = make_optimiser(
        model, model.declared_parameters(), OptimiserSpec(learning_rate=1e-2)
    )
    tokens = (torch.arange(33)[None] * torch.tensor([[1], [3], [5], [7]])) % 32
    losses = []
    for _ in range(50):
        optimiser.zero_grad()
        losses.append(accumulate_gradients(model, tokens, 2, "float32").item())
        optimiser.step()
    assert losses[-1] < losses[0] - 1


def test_an_experiment_file_asks_for_experts():
    given = ["model.mlp={width: 64, experts: {count: 8, active: 2, width: 32}}"]
    layers = name_model(load(FIRST, given))
    assert layers.layer("gdn", {}).experts == ExpertsSpec(count=8, active=2, width=32)


def test_more_active_experts_than_there_are_is_refused():
    given = ["model.mlp={width: 64, experts: {count: 8, active: 9, width: 32}}"]
    with pytest.raises(ValueError, match="count 8, active 9, width 32; expected"):
        load(FIRST, given)
