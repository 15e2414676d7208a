"""What is given to causal-conv1d, and what is made of its answers; the package needs a GPU.

Its two functions are written out here as it documents them, with the demands that its C++ makes on
memory. tests/kernels/test_backends_on_gpu.py runs the package itself.
"""

import sys
import types

import pytest
import torch
import torch.nn.functional as F

from kernels import backends
from kernels.backends import Signature, ask_for
from kernels.convolution import _by_cuda, _by_taps, _choose, _compared, causal_convolution
from kernels.errors import BackendUnavailable
from kernels.with_causal_conv1d import causal_convolution_cuda, why_not


def shifted(x, lag, seq_idx):
    """x (B, C, T) of `lag` tokens ago, where that was the same sequence."""
    behind = F.pad(x, (lag, 0))[..., : x.shape[2]]
    if seq_idx is None:
        return behind
    same = F.pad(seq_idx, (lag, 0), value=-1)[:, : x.shape[2]] == seq_idx
    return behind * same[:, None]


def before_silu(x, weight, bias, seq_idx):
    taps = weight.shape[1]
    seen = [shifted(x, lag, seq_idx) * weight[:, taps - 1 - lag, None] for lag in range(taps)]
    y = torch.stack(seen).sum(dim=0)
    return y if bias is None else y + bias[:, None]


def check_memory(*tensors):
    for x in tensors:
        assert x.stride(1) == 1  # channels last
        assert x.shape[1] % 8 == x.stride(0) % 8 == x.stride(2) % 8 == 0


def forward(x, weight, bias, seq_idx, initial_states, final_states_out, silu_activation):
    assert initial_states is None
    assert final_states_out is None
    check_memory(x)
    assert seq_idx is None or (seq_idx.dtype == torch.int32 and seq_idx.is_contiguous())
    y = before_silu(x, weight, bias, seq_idx)
    return F.silu(y) if silu_activation else y


def backward(
    x, weight, bias, dout, seq_idx, initial_states, dfinal_states, dx, return_dinitial_states,
    silu_activation,
):  # fmt: skip
    assert initial_states is dfinal_states is dx is None
    assert not return_dinitial_states
    assert bias is not None  # some versions fail without
    check_memory(x, dout)
    taps, gate = weight.shape[1], torch.ones_like(x)
    if silu_activation:
        y = before_silu(x, weight, bias, seq_idx)
        share = torch.sigmoid(y)
        gate = share * (1 + y * (1 - share))
    dy = dout * gate
    dx, dw = torch.zeros_like(x), torch.zeros_like(weight)
    for lag in range(taps):
        dw[:, taps - 1 - lag] = (shifted(x, lag, seq_idx) * dy).sum(dim=(0, 2))
        seen = shifted(torch.ones_like(x), lag, seq_idx) * dy * weight[:, taps - 1 - lag, None]
        dx += F.pad(seen, (0, lag))[..., lag:]
    return dx, dw, dy.sum(dim=(0, 2)), None


@pytest.fixture(autouse=True)
def package(monkeypatch):
    for name in ("_probed", "_used", "_asked"):
        monkeypatch.setattr(backends, name, {})
    module = types.ModuleType("causal_conv1d")
    functions = types.ModuleType("causal_conv1d.cpp_functions")
    passes = {"causal_conv1d_fwd_function": forward, "causal_conv1d_bwd_function": backward}
    functions.__dict__.update(passes)
    module.__dict__["cpp_functions"] = functions
    monkeypatch.setitem(sys.modules, "causal_conv1d", module)
    monkeypatch.setitem(sys.modules, "causal_conv1d.cpp_functions", functions)


@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(("channels", "offset"), [(16, 0), (8, 3)])  # aligned, and not
def test_outputs_states_and_gradients_are_those_of_the_taps(channels, offset, cut, biased, silu):
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(2, 21, 24, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(channels, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(channels, generator=generator, dtype=torch.float64, requires_grad=True)
    bias = bias if biased else None
    reset = None
    if cut:
        reset = torch.zeros(2, 21, dtype=torch.bool)
        reset[0, [4, 5, 12]], reset[1, 19] = True, True
    leaves = [leaf for leaf in (wide, weight, bias) if leaf is not None]

    def results(run):
        y, last = run(wide[..., offset : offset + channels])
        factor = torch.cos(torch.arange(y.numel(), dtype=y.dtype)).view(y.shape)
        return [y, last, *torch.autograd.grad((y * factor).sum(), leaves)]

    def by_taps(x):
        y, last = _by_taps(x, weight, bias, None, reset)
        return (F.silu(y) if silu else y), last

    found = results(lambda x: _by_cuda(x, weight, bias, reset, silu=silu))
    for a, b in zip(found, results(by_taps), strict=True):
        assert torch.allclose(a, b, atol=1e-12)


def signature(device="cpu", **sizes):
    given = {"channels": 16, "taps": 4, "bias": 0, "silu": 1, "documents": 1} | sizes
    return Signature(
        device=torch.device(device), dtype=torch.float32, sizes=tuple(given.items()),
        batch=2, length=200,
    )  # fmt: skip


def test_a_probe_finds_borders_that_are_seen_through():
    at = signature()

    def through(x, weight, bias, silu):
        return causal_convolution_cuda(x, weight, bias, None, silu=silu)

    why = _compared(through, at)
    assert why is not None
    assert "off by" in why
    assert _compared(through, signature(documents=0)) is None


def test_what_its_kernels_do_not_take_is_said():
    assert why_not(signature()) == "its kernels need a GPU"
    assert why_not(signature("cuda")) is None
    assert "not 5 taps and 16 channels" in (why_not(signature("cuda", taps=5)) or "")
    assert "not 4 taps and 20 channels" in (why_not(signature("cuda", channels=20)) or "")


def test_a_choice_over_documents_is_recorded_and_by_name_is_refused_off_the_gpu():
    at = (torch.device("cpu"), torch.float32, (16, 4, 0, 1, 1), 2, 30)
    assert _choose("auto", *at) == "torch"
    assert backends.backend_reasons() == {
        "convolution: torch": "causal_conv1d: its kernels need a GPU"
    }
    assert _choose("fla", *at) == "torch"  # which has no form for documents
    ask_for({"convolution": "causal_conv1d"})
    with pytest.raises(BackendUnavailable, match=r"backend 'causal_conv1d'.*need a GPU"):
        causal_convolution(torch.zeros(1, 9, 16), torch.zeros(16, 4))


def test_the_operator_says_the_shapes_that_it_returns():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        x, w = torch.randn(2, 9, 24, requires_grad=True), torch.randn(8, 4, requires_grad=True)
        document = torch.zeros(2, 9, dtype=torch.int32)
        y = causal_convolution_cuda(x[..., :8], w, None, document, silu=True)
        dx, dw = torch.autograd.grad(y.sum(), [x, w])
        assert (y.shape, dx.shape, dw.shape) == ((2, 9, 8), x.shape, w.shape)
