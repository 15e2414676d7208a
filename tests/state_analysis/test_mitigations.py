"""Mitigations against what they are defined as, computed another way."""

import pytest
import torch

from arch_search.state_analysis.layers import mixers_of
from arch_search.state_analysis.mitigations import (
    ConstantStep,
    ForgetMore,
    NormaliseState,
    Window,
    changed_layers,
    mitigated,
    norm_caps,
)
from arch_search.state_analysis.statistics import by_heads
from blocks.contract import BATCH, LENGTH, Case
from kernels.gated_delta import gated_delta_product
from kernels.ssd import ssd_scan

from .models import small_model, tokens

LINEAR = [
    Case(kind="mamba2"),
    Case(kind="mamba2", options={"heads": 4, "head_dim": 3, "groups": 2, "state_dim": 5}),
    Case(kind="gated_deltanet"),
    Case(kind="gated_deltaproduct"),  # two reflections a token
]


def last_tokens_alone(mixer, inputs, r):
    """y of each token when the recurrence has seen the last r tokens only, from an empty state."""
    outputs = []
    for t in range(LENGTH):
        piece = {name: part[:, max(0, t + 1 - r) : t + 1] for name, part in inputs.items()}
        y, _ = mixer.scan(piece, None, None)
        outputs.append(y[:, -1:])
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize("case", LINEAR, ids=lambda case: f"{case.kind}-{case}")
@pytest.mark.parametrize("r", [1, 8, 50])  # 50: longer than the sequence
def test_the_window_is_the_last_tokens_from_an_empty_state(case, r):
    mixer, x = case.filled(), case.inputs()
    with torch.no_grad():
        inputs = mixer._inputs(x, None, None)[0]
        y, _ = Window(tokens=r).recurrence(mixer)(inputs, None, None)
        expected = last_tokens_alone(mixer, inputs, r)
    assert (y - expected).abs().max() < 1e-10 * expected.abs().max().clamp(min=1)
    if r < LENGTH:
        plain, _ = mixer.scan(inputs, None, None)
        assert (y - plain).abs().max() > 1e-6


@pytest.mark.parametrize("kind", ["mamba2", "gated_deltanet"])
def test_a_window_is_carried_from_piece_to_piece(kind):
    model, text = small_model(kind, "attention", kind), tokens(40)
    with torch.no_grad(), mitigated(model, Window(tokens=7)):
        whole, _ = model(text)
        pieces, states = [], None
        for start, end in ((0, 1), (1, 4), (4, 25), (25, 40)):
            logits, states = model(text[:, start:end], states)
            pieces.append(logits)
    assert torch.allclose(torch.cat(pieces, dim=1), whole, atol=1e-10)


@pytest.mark.parametrize("kind", ["m2rnn", "rnn", "gru", "lstm"])
def test_what_is_not_a_weighted_sum_is_refused_with_the_reason(kind):
    model = small_model("mamba2", kind)
    for mitigation in (Window(tokens=4), ForgetMore()):
        with pytest.raises(ValueError, match=rf"layer 1 \({kind}\).*not a weighted sum"):
            changed_layers(model, mitigation)
        with pytest.raises(ValueError, match="layer 1"), mitigated(model, mitigation):
            pass
    assert all(getattr(mixer, "recurrence", None) is None for mixer in mixers_of(model))


def test_only_mamba2_has_a_step_and_attention_alone_nothing_to_change():
    with pytest.raises(ValueError, match="only Mamba-2 has a step size"):
        changed_layers(small_model("gated_deltanet"), ConstantStep())
    with pytest.raises(ValueError, match="no recurrent layer"):
        changed_layers(small_model("attention"), ForgetMore())


@pytest.mark.parametrize("case", LINEAR, ids=lambda case: f"{case.kind}-{case}")
def test_forgetting_more_is_the_recurrence_with_other_numbers(case):
    mixer, x = case.filled(), case.inputs()
    with torch.no_grad():
        inputs = mixer._inputs(x, None, None)[0]
        y, after = ForgetMore(keep=0.9, write=0.75).recurrence(mixer)(inputs, None, None)
        q, k, v, g = (inputs[name] for name in ("query", "key", "value", "log_decay"))
        if case.kind == "mamba2":  # on B, as published
            z, last = ssd_scan(q, 0.75 * k, v, g + torch.log(torch.tensor(0.9).double()))
        else:
            decay = g + torch.log(torch.tensor(0.9).double())
            z, last = gated_delta_product(q, k, 0.75 * v, decay, inputs["beta"])
    assert torch.allclose(y, z, atol=1e-7)
    assert torch.allclose(after["state"], last, atol=1e-7)


def test_ones_change_nothing_and_the_change_ends_with_its_block():
    model, text = small_model("mamba2"), tokens(30)
    plain, _ = model(text)
    for nothing in (ForgetMore(keep=1, write=1), ConstantStep(factor=1), Window(tokens=30)):
        with mitigated(model, nothing):
            assert torch.allclose(model(text)[0], plain, atol=1e-10)
    with mitigated(model, ForgetMore(keep=0.5)):
        assert not torch.allclose(model(text)[0], plain)
    assert torch.equal(model(text)[0], plain)


def test_a_smaller_step_stretches_time():
    mixer, x = LINEAR[0].filled(), LINEAR[0].inputs()
    inputs = mixer._inputs(x, None, None)[0]
    y, _ = ConstantStep(factor=0.5).recurrence(mixer)(inputs, None, None)
    halved, S = [], torch.zeros(BATCH, mixer.options.heads, mixer.options.state_dim,
                                mixer.options.head_dim, dtype=x.dtype)  # fmt: skip
    for t in range(LENGTH):
        write = inputs["key"][:, t, 0, None, :, None] * 0.5 * inputs["value"][:, t, :, None, :]
        S = S * (0.5 * inputs["log_decay"][:, t]).exp()[..., None, None] + write
        halved.append(torch.einsum("bk,bnkv->bnv", inputs["query"][:, t, 0], S))
    assert torch.allclose(y, torch.stack(halved, dim=1), atol=1e-10)


@pytest.mark.parametrize("kind", ["mamba2", "gated_deltanet", "m2rnn", "gru"])
def test_a_normalised_state_stays_under_its_cap_and_is_itself_below(kind):
    model, text = small_model(kind, "attention"), tokens(24)
    plain, _ = model(text)
    whole = norm_caps(model, text[:, :4])
    caps = [None if cap is None else 0.5 * cap for cap in whole]
    with torch.no_grad(), mitigated(model, NormaliseState(caps=whole, multiple=0.5)):
        capped, states = model(text)
    norm = by_heads(states[0]["state"]).square().sum(dim=(2, 3)).sqrt()
    assert caps[1] is None
    assert (norm <= caps[0] * (1 + 1e-9)).all()
    assert (norm >= caps[0] * (1 - 1e-9)).any()  # it grew over the cap, and was cut to it
    assert not torch.allclose(capped, plain)
    high = tuple(None if cap is None else cap * 1e9 for cap in caps)
    with mitigated(model, NormaliseState(caps=high)):
        assert torch.allclose(model(text)[0], plain, atol=1e-10)


def test_numbers_that_mean_nothing_are_refused():
    with pytest.raises(ValueError, match=r"keep 1\.1"):
        ForgetMore(keep=1.1)
    with pytest.raises(ValueError, match="at least 1"):
        Window(tokens=0)
    model, reset = small_model("mamba2"), torch.zeros(2, 5, dtype=torch.bool)
    with mitigated(model, Window(tokens=3)), pytest.raises(ValueError, match="packed documents"):
        model(tokens(5), reset=reset)
