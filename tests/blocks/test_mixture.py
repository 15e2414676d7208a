"""The mixture of experts against what it is made of."""

import pytest
import torch
import torch.nn.functional as F

from blocks.initialisation import named_generator
from blocks.mixture import Experts, MixtureOfExperts, router_loss


def make(*, count=5, active=2, shared=3) -> MixtureOfExperts:
    experts = Experts(count=count, active=active, width=4)
    module = MixtureOfExperts(6, shared, experts, depth=2)
    declared = module.declared_parameters()
    assert declared.keys() == {name for name, _ in module.named_parameters()}
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(
                torch.randn(parameter.shape, generator=named_generator(0, name, parameter.shape))
            )
    return module.double()


def expert(module: MixtureOfExperts, x: torch.Tensor, i: int) -> torch.Tensor:
    gate, up = (x @ module.input[i].T).chunk(2, dim=-1)
    return (F.silu(gate) * up) @ module.output[i].T


def test_each_token_is_the_weighted_sum_of_its_best_experts_and_the_shared_one():
    module, x = make(), torch.randn(2, 7, 6, dtype=torch.float64)
    logits = module.router(x)
    expected = torch.zeros_like(x)
    for b, t in torch.cartesian_prod(torch.arange(2), torch.arange(7)).tolist():
        best = logits[b, t].argsort(descending=True)[:2]
        share = logits[b, t, best].softmax(dim=0)
        expected[b, t] = sum(
            p * expert(module, x[b, t], int(e)) for p, e in zip(share, best, strict=True)
        )
    expected = expected + module.shared(x)
    assert torch.allclose(module(x), expected, atol=1e-12)


def test_gradients_are_those_of_finite_differences():
    module = make(count=3, shared=0)
    x = torch.randn(1, 3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(module, (x,))
    module(x).sum().backward()
    assert module.router.weight.grad.abs().max() > 0


def test_counts_are_exact():
    module = make()
    cost = module.cost()
    assert cost.parameters == sum(parameter.numel() for parameter in module.parameters())
    unused = (5 - 2) * 3 * 4 * 6
    assert cost.active_parameters == cost.parameters - unused
    assert cost.forward_flops_per_token == 2 * cost.active_parameters


def test_the_published_size():
    experts = Experts(count=128, active=8, width=256)
    with torch.device("meta"):
        cost = MixtureOfExperts(1536, 1024, experts, depth=40).cost()
    assert cost.parameters == 150_994_944 + 4_718_592 + 196_608
    assert cost.active_parameters == 9_437_184 + 4_718_592 + 196_608


def test_an_even_router_has_the_least_load_balance_loss():
    chosen = torch.arange(8).view(4, 2) % 4
    even = router_loss(torch.zeros(4, 4), chosen)
    uneven = router_loss(torch.tensor([[3.0, 0, 0, 0]] * 4), torch.zeros(4, 2, dtype=torch.int64))
    z = 1e-4 * torch.log(torch.tensor(4.0)) ** 2
    assert even.item() == pytest.approx(1e-3 + z.item())
    assert uneven > even


def test_more_active_experts_than_there_are_is_refused():
    with pytest.raises(ValueError, match="active is 6; there are 5 experts to choose"):
        make(active=6)
