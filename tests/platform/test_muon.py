"""Muon against torch's own for matrices, against itself head by head, and what it leaves alone."""

import pytest
import torch
from torch import nn

from arch_search.muon import orthogonal
from arch_search.optim import make_optimiser
from arch_search.spec import OptimiserSpec
from blocks.initialisation import Constant, Parameter

SPEC = OptimiserSpec(name="muon", learning_rate=0.02, weight_decay=0.1)


class Parts(nn.Module):
    def __init__(self, **shapes):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape, generator=generator)))


def stepped(model, spec=SPEC, steps=3, role=""):
    declared = {n: Parameter(Constant(0.0), decay=p.ndim > 1, role=role)
                for n, p in model.named_parameters()}  # fmt: skip
    optimiser = make_optimiser(model, declared, spec)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimiser.step()
    return dict(model.named_parameters())


@pytest.mark.parametrize("shape", [(24, 40), (64, 32), (32, 32)])
def test_matrices_move_as_torch_moves_them(shape):
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon to compare with")
    ours = stepped(Parts(w=shape))["w"]
    theirs = Parts(w=shape).w
    optimiser = torch.optim.Muon(
        [theirs], lr=0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        theirs.grad = torch.randn(shape, generator=generator)
        optimiser.step()
    moved = (theirs - Parts(w=shape).w).norm()
    assert (ours - theirs).norm() < 0.05 * moved  # both iterate in bfloat16, in another order


def test_a_stack_of_heads_moves_head_by_head():
    heads = stepped(Parts(w=(3, 16, 16)), role="recurrence")["w"]
    whole = Parts(w=(3, 16, 16)).w.detach()
    generator = torch.Generator().manual_seed(1)
    gradients = [torch.randn(3, 16, 16, generator=generator) for _ in range(3)]
    for head in range(3):
        alone, momentum = whole[head].clone(), torch.zeros(16, 16)
        for gradient in gradients:
            momentum = 0.95 * momentum + 0.05 * gradient[head]
            ahead = 0.95 * momentum + 0.05 * gradient[head]
            u, _, v = torch.linalg.svd(ahead.double())
            alone = alone * (1 - 0.02 * 0.1) - 0.02 * 0.2 * 16**0.5 * (u @ v).float()
        moved, expected = heads[head] - whole[head], alone - whole[head]
        cosine = torch.nn.functional.cosine_similarity(moved.flatten(), expected.flatten(), dim=0)
        assert cosine > 0.97
        assert (moved.norm() / expected.norm() - 1).abs() < 0.25


def test_singular_values_come_near_one():
    matrices = torch.randn(4, 48, 32, generator=torch.Generator().manual_seed(2))
    values = torch.linalg.svdvals(orthogonal(matrices).float())
    assert values.min() > 0.5
    assert values.max() < 1.35


def test_embedding_taps_vectors_and_diagonals_move_as_with_adamw():
    adamw = OptimiserSpec(learning_rate=0.02, weight_decay=0.1)
    shapes = {"bias": (8,), "taps": (64, 4)}
    for role, sizes in (("", shapes), ("recurrence", {"diagonal": (4, 16)})):
        muon, plain = (stepped(Parts(**sizes), spec, role=role) for spec in (SPEC, adamw))
        for name in sizes:
            assert torch.equal(muon[name], plain[name]), name
    model = nn.ModuleDict({"embedding": nn.Embedding(32, 16), "head": nn.Linear(16, 32, False)})
    declared = {n: Parameter(Constant(0.0), decay=True) for n, _ in model.named_parameters()}
    groups = make_optimiser(model, declared, SPEC).param_groups
    assert not any(group.get("matrices") for group in groups)
