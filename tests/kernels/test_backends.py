"""A fast backend is used when it agrees with the reference, and never otherwise."""

import pytest
import torch
import torch.utils.checkpoint

from kernels import backends
from kernels.backends import BACKENDS, Candidate, Signature, choose
from kernels.errors import BackendUnavailable
from kernels.gated_delta.chunked import _chunked, probe_inputs
from kernels.gated_delta.reference import gated_delta_loop
from kernels.probing import disagreement

SIGNATURE = Signature(
    device=torch.device("cpu"), dtype=torch.float32, sizes=(("N", 2), ("K", 8), ("V", 4)),
    batch=2, length=200,
)  # fmt: skip


def state_of(query, value):
    return query.new_zeros(len(query), *query.shape[2:], value.shape[-1])


def reference(query, value, **inputs):
    return gated_delta_loop(query, value=value, state=state_of(query, value), **inputs)


def right(query, value, **inputs):
    state = state_of(query, value)
    return _chunked(query, value=value, state=state, reset=None, chunk=32, **inputs)


def wrong_output(**inputs):
    return (right(**inputs)[0] * 1.02,)


def wrong_gradient(key, **inputs):
    """The right output; but the gradient of the key is 4 % too large."""
    return right(key=1.04 * key - 0.04 * key.detach(), **inputs)


def wrong_late(value, **inputs):
    """Wrong behind the first chunk only, as a carried state would make it."""
    late = torch.arange(value.shape[1])[:, None, None] > 100
    return right(value=torch.where(late, 0.5 * value, value), **inputs)


def nothing_written(**inputs):
    return (right(**inputs)[0] * float("nan"),)


def raises(**inputs):
    raise RuntimeError("no kernel image is available\nsecond line")


def probe_of(run):
    return lambda signature: disagreement(run, reference, probe_inputs(signature), signature)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(backends, "_probed", {})
    monkeypatch.setattr(backends, "_used", {})
    monkeypatch.setattr(backends, "_asked", {})


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (wrong_output, "its output is off by 0.02"),
        (wrong_gradient, "its gradient of key is off by 0.04"),
        (wrong_late, "off by"),
        (nothing_written, "its output is off by nan"),
        (raises, "RuntimeError: no kernel image is available"),
    ],
)
def test_a_broken_backend_is_found_out_and_auto_says_why_it_fell_back(run, why):
    fast = (Candidate(name="fla", probe=probe_of(run)),)
    assert choose("gated_delta", "auto", SIGNATURE, fast=fast, plain="chunked") == "chunked"
    assert backends.backends_used() == {"gated_delta": ["chunked"]}
    (reason,) = backends.backend_reasons().values()
    assert reason.startswith("fla: ")
    assert why in reason
    with pytest.raises(BackendUnavailable, match="gated_delta cannot run on the backend 'fla'"):
        choose("gated_delta", "fla", SIGNATURE, fast=fast, plain="chunked")


def test_a_right_backend_is_tried_once_and_taken():
    tried = []

    def probe(signature):
        tried.append(signature)
        return probe_of(right)(signature)

    fast = (Candidate(name="fla", probe=probe),)
    for length in (200, 300):
        again = Signature(
            device=SIGNATURE.device, dtype=SIGNATURE.dtype, sizes=SIGNATURE.sizes,
            batch=1, length=length,
        )  # fmt: skip
        assert choose("gated_delta", "auto", again, fast=fast, plain="chunked") == "fla"
    assert len(tried) == 1
    other = Signature(
        device=SIGNATURE.device, dtype=SIGNATURE.dtype, sizes=(("N", 1), ("K", 4), ("V", 4)),
        batch=1, length=64,
    )  # fmt: skip
    choose("gated_delta", "auto", other, fast=fast, plain="chunked")
    assert len(tried) == 2
    assert backends.backend_reasons() == {"gated_delta: fla": "agrees with the reference"}


def test_what_an_evaluation_asks_first_holds_for_the_next_run_of_its_process():
    fast = (Candidate(name="fla", probe=probe_of(right)),)
    with torch.inference_mode():
        assert choose("gated_delta", "auto", SIGNATURE, fast=fast, plain="chunked") == "fla"
        assert torch.is_inference_mode_enabled()
    assert choose("gated_delta", "auto", SIGNATURE, fast=fast, plain="chunked") == "fla"


def test_a_run_asks_for_backends_by_kernel():
    backends.ask_for({"gated_delta": "loop"})
    fast = (Candidate(name="fla", probe=lambda _: None),)
    assert choose("gated_delta", "auto", SIGNATURE, fast=fast, plain="chunked") == "loop"
    backends.ask_for({})
    assert choose("gated_delta", "auto", SIGNATURE, fast=fast, plain="chunked") == "fla"
    assert BACKENDS["gated_delta"] == ("loop", "chunked", "fla")


def test_operators_say_the_shapes_that_they_return():
    """What torch.compile is told of fla's and mamba-ssm's operators, without running them."""
    from torch._subclasses import FakeTensorMode

    from kernels.with_fla import causal_convolution_fla, gated_delta_fla
    from kernels.with_mamba_ssm import ssd_mamba

    with FakeTensorMode():
        q, v, g = (torch.randn(2, 70, 3, *n, requires_grad=True) for n in ((16,), (8,), ()))
        state = torch.randn(2, 3, 16, 8, requires_grad=True)
        for output, last in (gated_delta_fla(q, q, v, g, g, state), ssd_mamba(q, q, v, g, state)):
            assert (output.shape, last.shape) == (v.shape, state.shape)
            grads = torch.autograd.grad([output.sum(), last.sum()], [q, v, g, state])
            for x, grad in zip((q, v, g, state), grads, strict=True):
                assert (grad.shape, grad.dtype) == (x.shape, x.dtype)
        x, w = torch.randn(2, 9, 12, requires_grad=True), torch.randn(6, 4, requires_grad=True)
        y = causal_convolution_fla(x[..., :6], w, None, silu=True)
        dx, dw = torch.autograd.grad(y.sum(), [x, w])
        assert (y.shape, dx.shape, dw.shape) == ((2, 9, 6), x.shape, w.shape)


@pytest.mark.parametrize("probed_in", ["forward", "recomputation"])
def test_a_probe_within_a_checkpointed_part_leaves_its_tensors_alone(probed_in):
    calls, found = [], []

    def scan(x):
        return (torch.tanh(x) * x,)

    def part(x):
        calls.append(len(calls))
        if len(calls) == (1 if probed_in == "forward" else 2):
            found.append(disagreement(scan, scan, {"x": torch.ones(2, 200, 3)}, SIGNATURE))
        return torch.sin(x).exp()

    x = torch.linspace(-1, 1, 24).view(1, 8, 3).requires_grad_()
    torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False).sum().backward()
    assert (found, len(calls)) == ([None], 2)
    torch.testing.assert_close(x.grad, x.detach().sin().exp() * x.detach().cos())
