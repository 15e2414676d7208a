"""Chunked linear recurrences against their loops: outputs, states and every gradient."""

import itertools

import pytest
import torch

from kernels.gated_delta import gated_delta, gated_delta_product
from kernels.ssd import ssd_scan

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
SIZES = {"B": 2, "N": 4, "K": 6, "V": 5}


def make_inputs(kernel, length, dtype, *, seed=0, negative=False):
    """Inputs of a scan, each needing a gradient; keys of norm 1, decays from none to strong."""
    generator = torch.Generator().manual_seed(seed)
    B, N, K, V = SIZES.values()

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def uniform(*shape):
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    log_decay = -3 * uniform(B, length, N) ** 4
    state = normal(B, N, K, V)
    if kernel is ssd_scan:  # two groups of two heads
        inputs = [normal(B, length, 2, K), normal(B, length, 2, K), normal(B, length, N, V)]
        inputs += [log_decay, state]
    else:
        n = (3,) if kernel is gated_delta_product else ()
        key = torch.nn.functional.normalize(normal(B, length, *n, N, K), dim=-1)
        beta = uniform(B, length, *n, N) * (2 if negative else 1)
        inputs = [normal(B, length, N, K), key, normal(B, length, *n, N, V), log_decay]
        inputs += [beta, state]
    return [x.to(dtype).requires_grad_() for x in inputs]


def results(kernel, inputs, **options):
    output, last = kernel(*inputs, **options)
    generator = torch.Generator().manual_seed(9)
    upstream = [
        torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype)
        for x in (output, last)
    ]
    return output, last, *torch.autograd.grad([output, last], inputs, upstream)


def assert_close(found, expected, tolerance):
    for a, b in zip(found, expected, strict=True):
        assert (a - b).abs().max().item() <= tolerance * (1 + b.abs().max().item())


@pytest.mark.parametrize("kernel", [gated_delta, gated_delta_product, ssd_scan])
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("length", [2, 8, 9, 29])
@pytest.mark.parametrize("resets", [False, True])
def test_chunked_equals_the_loop(kernel, dtype, length, resets):
    reset = None
    if resets:
        reset = torch.rand(2, length, generator=torch.Generator().manual_seed(length)) < 0.2
    inputs = make_inputs(kernel, length, dtype, negative=resets)
    chunked = results(kernel, inputs, backend="chunked", chunk=8, reset=reset)
    loop = results(kernel, inputs, backend="loop", reset=reset)
    assert_close(chunked, loop, TOLERANCE[dtype])


@pytest.mark.parametrize("kernel", [gated_delta, gated_delta_product, ssd_scan])
def test_gradients_are_those_of_finite_differences(kernel):
    inputs = [
        x[:1].detach().requires_grad_() for x in make_inputs(kernel, 5, torch.float64, seed=4)
    ]
    for backend in ("loop", "chunked"):
        assert torch.autograd.gradcheck(
            lambda *leaves, b=backend: kernel(*leaves, backend=b, chunk=2),
            inputs,
            fast_mode=True,
        )


@pytest.mark.parametrize("kernel", [gated_delta, gated_delta_product, ssd_scan])
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_pieces_with_carried_state_equal_the_whole(kernel, dtype):
    *inputs, state = make_inputs(kernel, 45, dtype)
    whole = kernel(*inputs, state, chunk=16)
    outputs = []
    for start, end in itertools.pairwise([0, 1, 8, 30, 45]):
        y, state = kernel(*(x[:, start:end] for x in inputs), state, chunk=16)
        outputs.append(y)
    assert_close([torch.cat(outputs, dim=1), state], whole, TOLERANCE[dtype])


@pytest.mark.parametrize("kernel", [gated_delta, gated_delta_product, ssd_scan])
def test_a_reset_hides_everything_before_it(kernel):
    *inputs, state = make_inputs(kernel, 20, torch.float64)
    reset = torch.zeros(2, 20, dtype=torch.bool)
    reset[0, 0] = reset[:, 9] = True
    packed, last = kernel(*inputs, state, reset=reset, chunk=8)
    alone, last_alone = kernel(*(x[:, 9:] for x in inputs), chunk=8)
    assert_close([packed[:, 9:], last], [alone, last_alone], 1e-12)
    gradients = torch.autograd.grad(packed[:, 9:].sum() + last.sum(), inputs)
    assert all(gradient[:, :9].abs().max() < 1e-12 for gradient in gradients)


def test_strong_decay_over_a_long_chunk_stays_finite():
    """exp of a difference of cumulative decays is taken below the diagonal only."""
    q, k, v, g, b, _ = make_inputs(gated_delta, 64, torch.float32)
    strong = (g.detach() * 0 - 50).requires_grad_()
    y, _ = gated_delta(q, k, v, strong, b, chunk=64)
    (gradient,) = torch.autograd.grad(y.sum(), strong)
    assert y.isfinite().all()
    assert gradient.isfinite().all()


def test_one_correction_is_the_gated_delta_rule():
    q, k, v, g, b, s = make_inputs(gated_delta, 12, torch.float64)
    product = gated_delta_product(q, k[:, :, None], v[:, :, None], g, b[:, :, None], s)
    assert_close(product, gated_delta(q, k, v, g, b, s), 1e-12)


def test_a_correction_with_beta_two_reflects():
    """S <- (I - 2 k kᵀ) S turns the state over along k: what beta up to 1 cannot do."""
    k = torch.tensor([1.0, 0.0]).view(1, 1, 1, 2)
    zero, state = torch.zeros(1, 1, 1, 1), torch.eye(2).view(1, 1, 2, 2)
    _, last = gated_delta(k, k, torch.zeros(1, 1, 1, 2), zero[..., 0], zero[..., 0] + 2, state)
    assert torch.equal(last[0, 0], torch.diag(torch.tensor([-1.0, 1.0])))


@pytest.mark.parametrize("kernel", [gated_delta, ssd_scan])
def test_a_wrong_backend_is_answered_with_those_allowed(kernel):
    with pytest.raises(ValueError, match=r"backend is 'chunk'; expected one of auto, loop, chunk"):
        kernel(*make_inputs(kernel, 2, torch.float32), backend="chunk")
