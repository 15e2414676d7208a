"""Blocks against the equations that define them, written out here token by token."""

import math

import pytest
import torch
import torch.nn.functional as F

from blocks.contract import Case
from blocks.gated_norm import NORM_EPS, GatedNorm
from blocks.initialisation import named_generator
from kernels.m2rnn import m2rnn_scan
from kernels.rnn import rnn_scan

CLOSE = {"atol": 1e-10, "rtol": 1e-10}


def convolve(x, weight, bias=None):
    """SiLU of a causal depthwise convolution of one sequence, x (T, C), weight (C, W)."""
    taps = weight.shape[1]
    padded = F.pad(x, (0, 0, taps - 1, 0))
    y = sum(padded[j : j + len(x)] * weight[:, j] for j in range(taps))
    return F.silu(y if bias is None else y + bias)


def rms(x, eps=NORM_EPS):
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt()


def unit(x):
    return x / (x.square().sum(dim=-1, keepdim=True) + 1e-6).sqrt()


def softplus_decay(a, gate):
    return torch.exp(-torch.exp(gate.A_log) * torch.log1p(torch.exp(a + gate.dt_bias)))


def test_theorem_1_a_tanh_rnn_is_inside_m2rnn():
    """f = 0, q = k = e1, w_r = 0: y_t = tanh(y_{t-1} W + v_t), the first row of H."""
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(2, 50, 3, 4, generator=generator, dtype=torch.float64)
    weight = torch.randn(3, 4, 4, generator=generator, dtype=torch.float64)
    e1 = F.one_hot(torch.zeros(2, 50, 1, dtype=torch.int64), 5).double()
    zero = torch.zeros(2, 50, 3, dtype=torch.float64)
    y, state = m2rnn_scan(e1, e1, v, zero, weight)
    expected, last = rnn_scan(v, weight, backend="loop")
    assert torch.allclose(y, expected, **CLOSE)
    assert torch.allclose(state[:, :, 0], last, **CLOSE)
    assert state[:, :, 1:].abs().max() == 0


def test_m2rnn_is_the_papers_layer():
    """m2rnn.md §2.2 for one head count of q and k, N of the rest."""
    case = Case(kind="m2rnn", options={"key_dim": 5, "value_dim": 3, "value_heads": 4})
    layer, x = case.filled(), case.inputs()[:1]
    p = x[0] @ layer.input.weight.T
    qkv, a, g = p.split([5 + 5 + 12, 4, 12], dim=-1)
    q, k, v = convolve(qkv, layer.convolution.weight).split([5, 5, 12], dim=-1)
    f = softplus_decay(a, layer.forget.decay)
    H = torch.zeros(4, 5, 3, dtype=torch.float64)
    rows = []
    for t in range(len(p)):
        v_t = v[t].view(4, 3)
        Z = torch.tanh(H @ layer.state_weight.weight + k[t][None, :, None] * v_t[:, None, :])
        H = f[t][:, None, None] * H + (1 - f[t][:, None, None]) * Z
        y = torch.einsum("k,nkv->nv", q[t], H) + layer.residual * v_t
        rows.append(y.flatten() * F.silu(g[t]))
    out = (layer.norm.weight * rms(torch.stack(rows))) @ layer.output.weight.T
    found, state = layer(x)
    assert torch.allclose(found[0], out, **CLOSE)
    assert torch.allclose(state["state"][0], H, **CLOSE)


@pytest.mark.parametrize("gate", ["sigmoid", "constant", "none", "state"])
def test_the_other_gates_of_m2rnn(gate):
    case = Case(
        kind="m2rnn", options={"key_dim": 5, "value_dim": 3, "value_heads": 4, "gate": gate}
    )
    layer, x = case.filled(), case.inputs()[:1]
    p = x[0] @ layer.input.weight.T
    inputs = 0 if gate in ("constant", "none") else 4
    qkv, a, _ = p.split([22, inputs, 12], dim=-1)
    _, k, v = convolve(qkv, layer.convolution.weight).split([5, 5, 12], dim=-1)
    H = torch.zeros(4, 5, 3, dtype=torch.float64)
    for t in range(len(p)):
        match gate:
            case "sigmoid":
                f = torch.sigmoid(a[t] + layer.forget.bias)[:, None, None]
            case "constant":
                f = softplus_decay(torch.zeros(4), layer.forget.decay)[:, None, None]
            case "none":
                f = 0.0
            case _:
                read = torch.einsum("nkv,nv->nk", H, layer.forget.state_weight)
                f = torch.sigmoid((a[t] + layer.forget.bias)[:, None] + read)[..., None]
        written = k[t][None, :, None] * v[t].view(4, 1, 3)
        H = f * H + (1 - f) * torch.tanh(H @ layer.state_weight.weight + written)
    assert torch.allclose(layer(x)[1]["state"][0], H, **CLOSE)


def test_published_rounding_of_the_gate_freezes_the_slowest_heads():
    """Rounded to bfloat16, any f above 1 - 2^-9 is 1: the head never writes."""
    options = {"key_dim": 5, "value_dim": 3, "value_heads": 4, "gate": "constant"}
    case = Case(kind="m2rnn", options={**options, "gate_precision": "bfloat16"})
    layer = case.filled()
    with torch.no_grad():
        layer.forget.decay.A_log.fill_(0.0)
        layer.forget.decay.dt_bias.fill_(math.log(math.expm1(1e-3)))  # f = exp(-0.001)
    assert layer(case.inputs())[1]["state"].abs().max() == 0


def test_gated_deltanet_is_its_equation():
    options = {"key_heads": 1, "value_heads": 2, "key_dim": 3, "value_dim": 5}
    case = Case(kind="gated_deltanet", options=options)
    layer, x = case.filled(), case.inputs()[:1]
    q, k, v = convolve(x[0] @ layer.input.weight.T, layer.convolution.weight).split([3, 3, 10], -1)
    a, b, g = (x[0] @ layer.gates.weight.T).split([2, 2, 10], dim=-1)
    decay, beta = softplus_decay(a, layer.decay), torch.sigmoid(b)
    S = torch.zeros(2, 3, 5, dtype=torch.float64)
    rows = []
    for t in range(len(q)):
        q_t, k_t = unit(q[t]) / math.sqrt(3), unit(k[t])
        for n in range(2):
            keep = torch.eye(3, dtype=torch.float64) - beta[t, n] * torch.outer(k_t, k_t)
            v_n = v[t].view(2, 5)[n]
            S[n] = decay[t, n] * keep @ S[n] + beta[t, n] * torch.outer(k_t, v_n)
        y = torch.einsum("k,nkv->nv", q_t, S) * F.silu(g[t].view(2, 5))
        rows.append((layer.norm.weight * rms(y)).flatten())
    assert torch.allclose(layer(x)[0][0], torch.stack(rows) @ layer.output.weight.T, **CLOSE)


def test_gated_deltaproduct_corrects_several_times_a_token():
    options = {"key_heads": 2, "key_dim": 3, "value_dim": 4, "householders": 2}
    case = Case(kind="gated_deltaproduct", options=options)
    layer, x = case.filled(), case.inputs()[:1]
    mixed = convolve(x[0] @ layer.input.weight.T, layer.convolution.weight)
    _, k, v = mixed.split([6, 12, 16], dim=-1)
    a, b, _ = (x[0] @ layer.gates.weight.T).split([2, 4, 8], dim=-1)
    decay, beta = softplus_decay(a, layer.decay), 2 * torch.sigmoid(b).view(-1, 2, 2)
    S = torch.zeros(2, 3, 4, dtype=torch.float64)
    for t in range(len(k)):
        S = decay[t][:, None, None] * S
        for j in range(2):
            for n in range(2):
                k_j = unit(k[t].view(2, 2, 3)[j, n])
                error = v[t].view(2, 2, 4)[j, n] - S[n].T @ k_j
                S[n] = S[n] + beta[t, j, n] * torch.outer(k_j, error)
    assert torch.allclose(layer(x)[1]["state"][0], S, **CLOSE)


def test_mamba2_is_its_equation():
    case = Case(kind="mamba2", options={"heads": 2, "head_dim": 3, "state_dim": 4})
    layer, x = case.filled(), case.inputs()[:1]
    g, mixed, a = (x[0] @ layer.input.weight.T).split([6, 14, 2], dim=-1)
    mixed = convolve(mixed, layer.convolution.weight, layer.convolution.bias)
    u, B, C = mixed.split([6, 4, 4], dim=-1)
    dt = F.softplus(a + layer.decay.dt_bias)
    S = torch.zeros(2, 4, 3, dtype=torch.float64)
    rows = []
    for t in range(len(u)):
        u_t = u[t].view(2, 3)
        decay = torch.exp(-torch.exp(layer.decay.A_log) * dt[t])[:, None, None]
        S = decay * S + B[t][None, :, None] * (dt[t][:, None] * u_t)[:, None, :]
        y = torch.einsum("k,nkv->nv", C[t], S) + layer.residual[:, None] * u_t
        rows.append(y.flatten() * F.silu(g[t]))
    out = (layer.norm.weight * rms(torch.stack(rows))) @ layer.output.weight.T
    assert torch.allclose(layer(x)[0][0], out, **CLOSE)


def test_gru_is_its_equation():
    case = Case(kind="gru", options={"heads": 2, "head_dim": 3})
    layer, x = case.filled(), case.inputs()[:1]
    u, f_in, r_in, g = (x[0] @ layer.input.weight.T).chunk(4, dim=-1)
    u = convolve(u, layer.convolution.weight)
    h, rows = torch.zeros(2, 1, 3, dtype=torch.float64), []
    for t in range(len(u)):
        x_t, f_t, r_t = (part[t].view(2, 1, 3) for part in (u, f_in, r_in))
        r = torch.sigmoid(h @ layer.recall_weight + r_t)
        f = torch.sigmoid(h @ layer.forget_weight + f_t)
        h = f * h + (1 - f) * torch.tanh((r * h) @ layer.weight + x_t)
        rows.append(h.flatten() * F.silu(g[t]))
    out = (layer.norm.weight * rms(torch.stack(rows))) @ layer.output.weight.T
    assert torch.allclose(layer(x)[0][0], out, **CLOSE)


def test_lstm_is_torchs_own():
    case = Case(kind="lstm", options={"heads": 1, "head_dim": 3, "convolution": 0})
    layer, x = case.filled(), case.inputs()
    own = torch.nn.LSTM(12, 3, bias=False, batch_first=True, dtype=torch.float64)
    u, i, f, o, g = layer.input.weight.chunk(5)
    with torch.no_grad():
        own.weight_ih_l0.copy_(torch.cat([i, f, u, o]))
        weights = [layer.input_weight, layer.forget_weight, layer.weight, layer.output_weight]
        own.weight_hh_l0.copy_(torch.cat([w[0].T for w in weights]))
    h, (_, cell) = own(x)
    out = (layer.norm.weight * rms(h * F.silu(x @ g.T))) @ layer.output.weight.T
    found, state = layer(x)
    assert torch.allclose(found, out, **CLOSE)
    assert torch.allclose(state["cell"][:, 0], cell[0], **CLOSE)


@pytest.mark.parametrize("position", ["none", "rope"])
def test_attention_is_its_equation(position):
    """With two query heads a key head; rotary positions as complex rotations."""
    options = {"heads": 4, "key_heads": 2, "head_dim": 6, "window": 5, "position": position}
    case = Case(kind="attention", options=options)
    layer, x = case.filled(), case.inputs()[:1]
    q, k, v = (x[0] @ layer.input.weight.T).split([24, 12, 12], dim=-1)
    q, k, v = q.view(-1, 4, 6), k.view(-1, 2, 6), v.view(-1, 2, 6)
    if position == "rope":
        q, k = rotate_as_complex(q), rotate_as_complex(k)
    rows = []
    for t in range(len(q)):
        seen = slice(max(0, t - 4), t + 1)
        heads = []
        for n in range(4):
            scores = k[seen, n // 2] @ q[t, n] / math.sqrt(6)
            heads.append(scores.softmax(dim=0) @ v[seen, n // 2])
        rows.append(torch.cat(heads))
    assert torch.allclose(layer(x)[0][0], torch.stack(rows) @ layer.output.weight.T, **CLOSE)


def rotate_as_complex(x):
    half = x.shape[-1] // 2
    rates = 1e4 ** (-torch.arange(half, dtype=torch.float64) * 2 / x.shape[-1])
    angle = torch.arange(len(x), dtype=torch.float64)[:, None, None] * rates
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(
        torch.ones(()).double(), angle
    )
    return torch.cat([turned.real, turned.imag], dim=-1)


@pytest.mark.parametrize("order", ["gate_norm", "norm_gate"])
@pytest.mark.parametrize("groups, shared", [(1, False), (2, False), (4, True), (0, False)])
def test_gate_and_norm_orders_are_their_equations(order, groups, shared):
    generator = torch.Generator().manual_seed(0)
    y, g = torch.randn(2, 5, 8, generator=generator, dtype=torch.float64)
    module = GatedNorm(8, groups=groups, shared=shared, order=order).double()
    if groups:
        torch.nn.init.normal_(module.weight)
    w = torch.ones(8) if groups == 0 else module.weight.repeat(groups) if shared else module.weight

    def norm(x):
        return x if groups == 0 else rms(x.view(5, groups, -1)).view(5, 8) * w

    expected = norm(y * F.silu(g)) if order == "gate_norm" else norm(y) * F.silu(g)
    assert torch.allclose(module(y, g), expected, **CLOSE)


def test_an_orthogonal_constraint_keeps_w_orthogonal():
    options = {"value_dim": 3, "value_heads": 4, "weight_constraint": "orthogonal"}
    weight = Case(kind="m2rnn", options=options).filled().state_weight()
    assert torch.allclose(weight @ weight.mT, torch.eye(3).double().expand(4, 3, 3), **CLOSE)


def test_decay_pulls_on_what_the_paper_says():
    """m2rnn.md §2: never on norms, biases, A_log, dt_bias, D; on W of M²RNN, not of RNN and GRU."""
    decayed = {
        kind: {
            name for name, p in Case(kind=kind, width=16).build().declared_parameters().items()
            if p.decay
        }
        for kind in ("m2rnn", "gru", "rnn", "mamba2", "gated_deltanet")
    }  # fmt: skip
    projections = {"input.weight", "output.weight", "convolution.weight"}
    assert decayed["m2rnn"] == projections | {"state_weight.weight"}
    assert decayed["gru"] == decayed["rnn"] == decayed["mamba2"] == projections
    assert decayed["gated_deltanet"] == projections | {"gates.weight"}


@pytest.mark.parametrize("kind", ["gdn", "mamba2", "m2rnn", "rnn", "gru", "lstm"])
def test_the_norm_s_epsilon_decides_how_far_a_branch_stands_open_at_its_start(kind):
    """What the norm meets at the published start is far below 1e-5: only a small ε lets it out."""

    def after_the_norm(**options):
        case = Case(kind=kind, width=256, options=options)
        layer, seen = case.build().double(), []
        for name, declared in layer.declared_parameters().items():
            parameter = layer.get_parameter(name)
            generator = named_generator(0, name, parameter.shape)
            parameter.data.copy_(declared.start.sample(parameter.shape, generator))
        layer.norm.register_forward_hook(lambda module, args, output: seen.append(output))
        layer(case.inputs())
        return seen[0].square().mean().sqrt().item()

    assert after_the_norm(norm_eps=1e-30) == pytest.approx(1, rel=1e-3)
    assert after_the_norm() == after_the_norm(norm_eps=1e-5) < 0.6
