"""Run by test_m2rnn_triton.py in a process of its own, with TRITON_INTERPRET=1."""

import os

import pytest
import torch
from allpairspy import AllPairs

from blocks.registry import build, resolve_options
from kernels import probing, triton_convolution
from kernels.backends import Signature, ask_for, backends_used, forget_backends
from kernels.convolution import causal_convolution
from kernels.cross_entropy.triton_rows import softmax_rows
from kernels.m2rnn import layer, layer_choice, proving, triton_scan
from kernels.m2rnn.checking import Shape, errors, make_case
from kernels.m2rnn.partial_sums import sum_gradients
from kernels.m2rnn.triton_gate import decay_gate
from kernels.rnn import gru_scan, lstm_scan, rnn_scan
from kernels.rnn.triton_scan import MAX_FLOAT32_LSTM
from tests.kernels.gated_norm_cases import NORMS, norm_errors

assert os.environ.get("TRITON_INTERPRET") == "1"

OPTIONS = {
    "nonlinearity": ["tanh", "identity", "softsign", "relu", "hard_tanh", "norm_clip"],
    "weight": ["dense", "diagonal", "identity"],
    "write": ["outer", "delta"],
    "clip": ["carry", "none", "sum"],
    "state_gate": [False, True],
    "reset": [False, True],
    "state": [True, False],
    "sizes": [(5, 16), (1, 16), (16, 20), (40, 16), (33, 16)],  # K, V
    "heads": [(1, 1, 4, 4, 4), (2, 1, 2, 4, 1), (4, 2, 4, 1, 2)],  # q, k, v, f, W
}
CASES = [dict(zip(OPTIONS, row, strict=True)) for row in AllPairs(list(OPTIONS.values()))]


def case_of(options: dict, T: int, dtype: torch.dtype):
    options = dict(options)
    K, V = options.pop("sizes")
    Nq, Nk, Nv, Nf, Nw = options.pop("heads")
    shape = Shape(B=2, T=T, N=4, K=K, V=V, Nq=Nq, Nk=Nk, Nv=Nv, Nf=Nf, Nw=Nw)
    return make_case(shape, dtype=dtype, **options)


@pytest.mark.parametrize("options", CASES, ids=lambda o: "-".join(map(str, o.values())))
def test_float32_is_exact(options):
    for name, error in errors(case_of(options, 5, torch.float32)).items():
        assert error < 2e-5, name


@pytest.mark.parametrize("T", [1, 63, 64, 65])
def test_chunk_borders(T):
    case = make_case(Shape(B=1, T=T, N=1, K=5, V=16), dtype=torch.float32, clip="carry", reset=True)
    for name, error in errors(case).items():
        assert error < 2e-5, name


@pytest.mark.parametrize("weight", ["dense", "diagonal", "identity"])
def test_bfloat16_rounds_operands_only(weight):
    case = make_case(Shape(B=1, T=12, N=2, K=16, V=16), weight=weight)
    for name, error in errors(case).items():
        assert error < (6e-3 if name in ("output", "last_state") else 1.5e-2), name


@pytest.mark.parametrize("clip", ["none", "carry", "sum"])
@pytest.mark.parametrize("B,T,V", [(3, 5, 16), (18, 3, 20), (1, 1, 16), (2, 3, 64)])
def test_vector_cells(clip, B, T, V):
    generator = torch.Generator().manual_seed(B)

    def normal(*size):
        return torch.randn(*size, generator=generator)

    reset = torch.rand(B, T, generator=generator) < 0.3
    inputs, weights, state = (B, T, 2, V), (2, V, V), (B, 2, V)
    for scan, shapes in (
        (rnn_scan, [inputs, weights, state]),
        (gru_scan, [inputs] * 3 + [weights] * 3 + [state]),
        (lstm_scan, [(B, T, 2, 4 * V), (2, V, 4 * V), state, state]),
    ):
        if scan is lstm_scan and V > MAX_FLOAT32_LSTM:
            continue  # refused
        tensors = [normal(*s) * (0.3 if s[1:] in (weights[1:], (V, 4 * V)) else 1) for s in shapes]
        results = []
        for backend, dtype in (("triton", torch.float32), ("loop", torch.float64)):
            leaves = [x.to(dtype).requires_grad_() for x in tensors]
            outputs = scan(*leaves, clip=clip, reset=reset, backend=backend)
            grads = [torch.ones_like(x).cumsum(-1) * 0.1 for x in outputs]
            results.append([*outputs, *torch.autograd.grad(outputs, leaves, grads)])
        for found, truth in zip(*results, strict=True):
            assert (found - truth).norm() < 1e-5 * truth.norm(), scan.__name__


@pytest.mark.parametrize("options", NORMS)
def test_gate_and_norm(options):
    for name, error in norm_errors("cpu", torch.float32, **options).items():
        assert error < 1e-6, name


LAYERS = [
    ((1, 1, 3, 5, 4, 3, 4, 3, 1), ("dense", "tanh", "carry"), 2),
    ((3, 1, 3, 4, 16, 1, 3, 1, 0), ("diagonal", "relu", "none"), 1),
]


@pytest.mark.parametrize("sizes,modes,B", LAYERS)
def test_a_layer_as_one_operator_is_its_parts(monkeypatch, sizes, modes, B):
    monkeypatch.setattr(layer_choice, "LENGTH", 10)
    monkeypatch.setattr(probing, "TOLERANCES", {torch.float32: 5e-6})
    names = ("Nq", "Nk", "N", "K", "V", "Nf", "taps", "Nw", "residual")
    signature = Signature(
        device=torch.device("cpu"), dtype=torch.float32, batch=B, length=10,
        sizes=tuple(zip(names, sizes, strict=True)),
    )  # fmt: skip
    assert layer_choice.against_torch(signature, modes) is None
    monkeypatch.setattr(layer, "decay_gate", lambda a, rate, dt: 0.9 * decay_gate(a, rate, dt))
    assert "off by" in str(layer_choice.against_torch(signature, modes))


def test_a_block_as_one_operator_is_its_parts(monkeypatch):
    monkeypatch.setattr(layer_choice, "LENGTH", 7)
    found = []
    for how in ("whole", "parts"):
        ask_for({"m2rnn_layer": how})
        forget_backends()
        options = resolve_options(
            "m2rnn", {"value_heads": 2, "value_dim": 4, "key_dim": 5}, width=8
        )
        mixer = build("m2rnn", options, width=8, depth=1)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in mixer.parameters():
                parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
        x = torch.randn(2, 7, 8, generator=generator, requires_grad=True)
        y, state = mixer(x)
        grads = torch.autograd.grad(y.square().sum(), [x, *mixer.parameters()])
        assert backends_used()["m2rnn_layer"] == [how]
        found.append([y, state["state"], state["convolution"], *grads])
    ask_for({})
    for whole, parts in zip(*found, strict=True):
        assert (whole - parts).norm() < 2e-5 * parts.norm()


def test_the_layer_operators_tell_the_compiler_what_they_return():
    widths = layer.Widths(query_heads=1, key_heads=1, heads=2, K=3, V=4, forget_heads=2)
    shapes = [(1, 5, sum(widths.parts)), (14, 4), (2,), (2,), (2, 4, 4), (8,), (8,)]
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(s, generator=generator) for s in shapes]
    rest = (widths.numbers(), "tanh", "carry", 1e-5)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(layer._forward, (*tensors, *rest, True), test_utils=checks)
    output, last, *kept = layer._forward(*tensors, *rest, True)
    torch.library.opcheck(
        layer._backward, (*tensors, *kept, output, last, *rest), test_utils=checks
    )


@pytest.mark.parametrize("T,W,bias,silu", [(11, 4, True, True), (8, 2, False, False)])
def test_convolution_in_chunks(monkeypatch, T, W, bias, silu):
    monkeypatch.setattr(triton_convolution, "CHUNK", 4)
    generator = torch.Generator().manual_seed(T)
    x, weight, b = (torch.randn(s, generator=generator) for s in ((2, T, 9), (5, W), (5,)))
    results = []
    for dtype in (torch.float32, torch.float64):
        leaves = [t.to(dtype).requires_grad_() for t in (x, weight, *([b] if bias else []))]
        given = [leaves[0][..., 2:7], *leaves[1:], *([] if bias else [None])]
        if dtype == torch.float32:
            y = triton_convolution.convolution(*given, silu=silu)
        else:
            y, _ = causal_convolution(*given, silu=silu, backend="torch")
        results.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
    for found, truth in zip(*results, strict=True):
        assert (found - truth).norm() < 1e-6 * truth.norm()


@pytest.mark.parametrize("Nv,residual", [(4, True), (2, False)])
def test_shares_are_summed_into_slices_of_one_tensor(Nv, residual):
    generator = torch.Generator().manual_seed(0)
    tiles, B, T, N, K, V, first, S = 3, 2, 9, 4, 8, 16, 4, 5

    def normal(*size):
        return torch.randn(*size, generator=generator)

    parts = [normal(B, N, S, K), normal(B, N, S, K), normal(tiles, B, S, N, V)]
    parts.append(normal(tiles, B, S, N))
    wide, forget = torch.zeros(B, T, 3 * K + Nv * V + 4), torch.zeros(B, T, N)
    q, k, v, _ = wide.split([K, 2 * K, Nv * V, 4], dim=-1)
    outs = [q.unflatten(-1, (1, K)), k.unflatten(-1, (2, K)), v.unflatten(-1, (Nv, V)), forget]
    dy, D = normal(B, T, N, V), normal(N, V)
    sum_gradients(parts, outs, first, *((dy, D) if residual else ()))
    expected = torch.zeros_like(wide)
    here = expected[:, first : first + S]
    here[..., :K] = parts[0].sum(1)
    here[..., K : 3 * K] = parts[1].unflatten(1, (2, 2)).sum(2).transpose(1, 2).flatten(2)
    value = parts[2].sum(0) + (D * dy[:, first : first + S] if residual else 0)
    here[..., 3 * K : -4] = value.unflatten(2, (Nv, -1)).sum(3).flatten(2)
    assert torch.allclose(wide, expected, atol=1e-5)
    assert torch.allclose(forget[:, first:], parts[3].sum(0), atol=1e-5)
    assert not forget[:, :first].any()


def test_rows_of_logits_become_gradients_and_losses():
    logits = torch.randn(4, 5001, generator=torch.Generator().manual_seed(0)) * 5
    targets, losses = torch.tensor([3, 5000, -100, 0]), torch.empty(4)
    leaf = logits.clone().requires_grad_()
    expected = torch.nn.functional.cross_entropy(leaf, targets, reduction="none")
    (gradient,) = torch.autograd.grad(expected.sum(), leaf)
    softmax_rows(logits, targets, losses)
    assert (losses - expected).abs().max() < 1e-5
    assert (logits - gradient).abs().max() < 1e-6


def test_a_scan_proves_right_at_its_heads_and_a_broken_one_does_not(monkeypatch):
    monkeypatch.setattr(proving, "LENGTH", 9)
    monkeypatch.setattr(proving, "_proved", {})
    q, v, f = torch.empty(2, 5, 1, 16), torch.empty(2, 5, 2, 16), torch.empty(2, 5, 2)
    modes = {"nonlinearity": "tanh", "write": "outer", "clip": "carry"}
    modes |= {"gate_weight": None, "reset": None}
    inputs = (q, q, v, f, torch.empty(2, 16, 16), torch.empty(2, 2, 16, 16))
    with (
        torch.inference_mode()
    ):  # as an evaluation, where a run's first batch of a shape may be its
        assert proving.why_wrong(inputs, modes) is None
    real = triton_scan.m2rnn_triton

    def forgets_the_gate(query, key, value, forget, *rest, **modes):
        return real(query, key, value, forget.detach(), *rest, **modes)

    monkeypatch.setattr(triton_scan, "m2rnn_triton", forgets_the_gate)
    assert proving.why_wrong(inputs, modes) is None  # tried once
    monkeypatch.setattr(proving, "_proved", {})
    assert "RuntimeError" in proving.why_wrong(inputs, modes)

    def forgets_too_much(query, key, value, forget, *rest, **modes):
        return real(query, key, value, 0.9 * forget, *rest, **modes)

    monkeypatch.setattr(proving, "_proved", {})
    monkeypatch.setattr(triton_scan, "m2rnn_triton", forgets_too_much)
    assert "off by" in proving.why_wrong(inputs, modes)
