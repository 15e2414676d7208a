"""FLOP counts against operations counted while they ran, and MFU's bound."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from arch_search.model import LanguageModel, count_model, next_token_loss
from arch_search.spec import LayerSpec, ModelSpec
from arch_search.throughput.flops import (
    TRAINING,
    OverPeak,
    forward_flops,
    measured_peak,
    stated_peak,
    utilisation,
)
from blocks.measured_flops import FlopMeter, measure_flops
from blocks.registry import BLOCKS, build, resolve_options
from kernels.m2rnn.reference import m2rnn_loop

LENGTH, WIDTH = 192, 1024  # tokens in three chunks; the width of the published 410 M models
PUBLISHED = {  # mixers as published; others at their defaults
    "attention": {"heads": 16},
    "gated_deltanet": {"key_heads": 2, "value_heads": 2, "key_dim": 256, "value_dim": 512},
    "m2rnn": {"key_dim": 64, "value_dim": 16, "value_heads": 84},
    "mamba2": {"heads": 64, "head_dim": 19, "state_dim": 216},
    "rnn": {"heads": 85, "head_dim": 16},
    "gru": {"heads": 85, "head_dim": 16},
}


@pytest.fixture(autouse=True)
def _the_plain_scan(monkeypatch):
    """M²RNN's torch form spells tanh out in products and sums; its loop calls the function."""
    monkeypatch.setattr("kernels.m2rnn.scan.m2rnn_torch", m2rnn_loop)


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_blocks_count_is_what_runs_to_two_percent(kind):
    """Products of matrices, and every pointwise sum and product, those of norms and gates too."""
    options = resolve_options(kind, PUBLISHED.get(kind, {}), width=WIDTH)
    mixer = build(kind, options, width=WIDTH, depth=24)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.normal_(0, 0.02)
    measured = measure_flops(mixer, torch.randn(1, LENGTH, WIDTH))
    counted = mixer.cost(LENGTH).forward_flops_per_token * LENGTH
    assert counted == pytest.approx(measured.products + measured.arithmetic, rel=0.02)
    assert measured.products > 0.9 * counted  # what is counted beside products is little


def test_our_meter_agrees_with_torchs_own_on_products():
    x, weight = torch.randn(3, 5, 7), torch.randn(3, 7, 11)

    def products():
        torch.bmm(x, weight)
        torch.baddbmm(torch.randn(3, 5, 11), x, weight)
        torch.addmm(torch.randn(11), x[0], weight[0])
        torch.nn.functional.linear(x, torch.randn(2, 7))

    with FlopCounterMode(display=False) as theirs:
        products()
    assert measure_flops(products).products == theirs.get_total_flops()


def _small(*kinds: str) -> ModelSpec:
    layers = tuple(
        LayerSpec(
            kind=kind,
            options={
                name: getattr(options, name)
                for options in [resolve_options(kind, {}, width=128)]
                for name in options.__dataclass_fields__
            },
            mlp_width=256,
        )
        for kind in kinds
    )
    return ModelSpec(layers=layers, width=128, vocabulary=256, tie_embeddings=True)


def test_parts_of_a_model_sum_to_its_count_and_to_what_runs():
    spec = _small("gated_deltanet", "attention", "gated_deltanet")
    parts = forward_flops(spec, 128)
    assert set(parts) == {"gated_deltanet", "attention", "mlp", "head"}
    assert sum(parts.values()) == count_model(spec, 128).forward_flops_per_token
    model = LanguageModel(spec)
    measured = measure_flops(model, torch.randint(256, (1, 128)))
    assert sum(parts.values()) * 128 == pytest.approx(measured.products, rel=0.03)


def test_a_training_step_is_three_forward_passes():
    spec = _small("attention", "rnn")
    model, tokens = LanguageModel(spec), torch.randint(256, (1, 65))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.02)
    with FlopMeter() as meter:
        next_token_loss(model(tokens[:, :-1])[0], tokens[:, 1:]).backward()
    counted = TRAINING * sum(forward_flops(spec, 64).values()) * 64
    attention = 2 * 128 * 65 * 64 * 2  # the backward pass of its scores, which no meter sees
    assert counted == pytest.approx(meter.measured.products + attention, rel=0.03)


def test_mfu_over_one_is_refused_with_both_numbers():
    assert utilisation(400e12, 989.4, source="stated") == pytest.approx(0.404, abs=1e-3)
    with pytest.raises(OverPeak, match=r"133%.*1316 TFLOP/s.*989\.4"):
        utilisation(1.33 * 989.4e12, 989.4, source="stated")


def test_peaks_are_those_of_the_data_sheets_or_measured():
    assert stated_peak("NVIDIA H200", "bfloat16") == 989.4
    assert stated_peak("NVIDIA H100 PCIe", "bfloat16") == 756.0
    assert stated_peak("NVIDIA A100-SXM4-80GB", "float32") == 19.5
    assert stated_peak("AMD EPYC", "float32") is None
    assert 1e-3 < measured_peak(torch.device("cpu"), "float32", size=256) < 100
