"""Outside libraries' kernels on this GPU: with carried states and resets, whole and in pieces."""

import pytest
import torch

from kernels.attention import causal_attention
from kernels.backends import Signature
from kernels.convolution import causal_convolution
from kernels.cross_entropy import linear_cross_entropy
from kernels.gated_delta import chunked as delta
from kernels.ssd import chunked as ssd

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
LIMIT = 2e-2  # of the norm, in bfloat16


def signature(**sizes):
    return Signature(
        device=torch.device("cuda", 0), dtype=torch.bfloat16, sizes=tuple(sizes.items()),
        batch=2, length=300,
    )  # fmt: skip


def results(scan, inputs, backend, reset):
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    *rest, state = leaves
    outputs = scan(*rest, state, reset=reset, backend=backend)
    weights = [torch.cos(torch.arange(x.numel(), device="cuda")).view(x.shape) for x in outputs]
    total = sum((x.float() * w).sum() for x, w in zip(outputs, weights, strict=True))
    return [*outputs, *torch.autograd.grad(total, leaves)]


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("kernel", ["gated_delta", "ssd"])
def test_scans_agree_with_ours_with_states_and_resets(kernel, resets):
    if kernel == "gated_delta":
        pytest.importorskip("fla")
        at, fast, scan = signature(N=2, K=64, V=128), "fla", delta.gated_delta
        inputs, shape = list(delta.probe_inputs(at).values()), (2, 2, 64, 128)
    else:
        at, fast, scan = signature(G=1, N=4, K=64, V=32), "mamba_ssm", ssd.ssd_scan
        inputs, shape = list(ssd.probe_inputs(at).values()), (2, 4, 64, 32)
    inputs.append(torch.randn(shape, device="cuda", generator=torch.Generator("cuda")))
    reset = None
    if resets:
        reset = torch.zeros(2, 300, dtype=torch.bool, device="cuda")
        reset[0, [0, 70, 71]], reset[1, 200] = True, True
    found, expected = (results(scan, inputs, backend, reset) for backend in (fast, "chunked"))
    for a, b in zip(found, expected, strict=True):
        assert (a.float() - b.float()).norm() <= LIMIT * (b.float().norm() + 1e-3)


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_causal_conv1d_agrees_with_torchs(biased, documents):
    pytest.importorskip("causal_conv1d")
    x = torch.randn(2, 300, 96, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    leaves = [x, torch.randn(64, 4, device="cuda", requires_grad=True)]
    leaves += [torch.randn(64, device="cuda", requires_grad=True)] if biased else []
    reset = None
    if documents:
        reset = torch.zeros(2, 300, dtype=torch.bool, device="cuda")
        reset[0, [0, 70, 71]], reset[1, 299] = True, True
    found = []
    for backend in ("causal_conv1d", "torch"):
        y, last = causal_convolution(
            x[..., :64], *leaves[1:], reset=reset, silu=True, backend=backend
        )
        found.append([y, last, *torch.autograd.grad(y.float().square().sum(), leaves)])
    for a, b in zip(*found, strict=True):
        assert (a.float() - b.float()).norm() <= LIMIT * b.float().norm() + 1e-6


def test_convolution_and_loss_agree_with_torchs():
    pytest.importorskip("fla")
    x = torch.randn(2, 300, 96, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    w = torch.randn(64, 4, device="cuda", requires_grad=True)
    for backend in ("fla", "torch"):
        y, last = causal_convolution(x[..., :64], w, silu=True, backend=backend)
        found = [y, last, *torch.autograd.grad(y.float().square().sum(), [x, w])]
        if backend == "fla":
            kept = found
    for a, b in zip(kept, found, strict=True):
        assert (a.float() - b.float()).norm() <= LIMIT * b.float().norm()
    head = torch.randn(5003, 96, device="cuda", requires_grad=True)
    targets = torch.randint(5003, (2, 300), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        losses = [linear_cross_entropy(x, head, targets, backend=b) for b in ("triton", "full")]
    grads = [torch.autograd.grad(loss, [x, head]) for loss in losses]
    assert (losses[0] - losses[1]).abs() < 1e-3 * losses[1]
    for a, b in zip(*grads, strict=True):
        assert (a.float() - b.float()).norm() <= LIMIT * b.float().norm()


@pytest.mark.parametrize("window", [0, 200])
@pytest.mark.parametrize("documents", [False, True])
def test_flex_attention_agrees_with_torchs(window, documents):
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = [(2, 900, 4, 64), (2, 900, 2, 64), (2, 900, 2, 64)]
    given = [
        torch.randn(s, generator=generator, device="cuda", dtype=torch.bfloat16).requires_grad_()
        for s in shapes
    ]
    first = None
    if documents:
        place = torch.arange(900, device="cuda")
        first = torch.stack([place - place % 70, torch.where(place < 401, 0, 401)])
    found = []
    for backend in ("flex", "sdpa"):
        y = causal_attention(*given, first=first, window=window, backend=backend)
        weight = torch.cos(torch.arange(y.numel(), device="cuda")).view(y.shape)
        found.append([y, *torch.autograd.grad((y.float() * weight).sum(), given)])
    for a, b in zip(*found, strict=True):
        assert (a.float() - b.float()).norm() <= LIMIT * b.float().norm()
