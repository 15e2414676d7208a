"""What a user gets wrong in a block's options is named, with what was meant."""

import pytest

from blocks.registry import canonical_kind, resolve_options


@pytest.mark.parametrize(
    "kind, options, message",
    [
        ("m2rn", {}, r"unknown block 'm2rn'; registered: attention, .* Did you mean 'm2rnn'\?"),
        ("m2rnn", {"nonlinearty": "tanh"}, r"unknown option 'nonlinearty' .* mean 'nonlinearity'"),
        ("m2rnn", {"nonlinearity": "tahn"}, r"expected one of tanh, identity, .* mean 'tanh'\?"),
        ("m2rnn", {"key_dim": "64"}, r"option 'key_dim' of m2rnn is '64'; expected int"),
        ("m2rnn", {"key_dim": True}, r"option 'key_dim' of m2rnn is True; expected int"),
        ("m2rnn", {"output_gate": 1}, r"option 'output_gate' of m2rnn is 1; expected bool"),
        ("m2rnn", {"key_dim": 0}, r"m2rnn: key_dim is 0; expected a number above 0"),
        ("m2rnn", {"convolution": -1}, r"m2rnn: convolution is -1; expected 0 or more"),
        ("m2rnn", {"gate_rate": [1]}, r"option 'gate_rate' of m2rnn is \[1\]; expected 2 values"),
        ("m2rnn", {"gate_bias": [5, 1]}, r"gate_bias is \[5.0, 1.0\]; expected \[low, high\]"),
        ("m2rnn", {"gate_rate": [-1, 1]}, r"gate_rate is \[-1.0, 1.0\]; .* low at least 0"),
        (
            "m2rnn",
            {"query_heads": 3, "value_heads": 5},
            r"query_heads 3 does not divide the largest head count, 5",
        ),
        ("m2rnn", {"weight": "diagonal", "weight_init": "orthogonal"}, r"needs weight 'dense'"),
        (
            "m2rnn",
            {"norm": "group", "norm_groups": 2},
            r"norm_groups 2 does not divide the 5 heads",
        ),
        ("m2rnn", {"gate": "state", "gate_precision": "bfloat16"}, r"use 'float32'"),
        ("gdn", {"key_heads": 2, "value_heads": 3}, r"key_heads 2 does not divide value_heads 3"),
        ("attn", {"heads": 3}, r"heads 3 does not divide the width 64; give head_dim"),
        ("attn", {"head_dim": 5, "position": "rope"}, r"head_dim 5 is odd; rope turns pairs"),
        ("mamba2", {"groups": 2, "heads": 3}, r"groups 2 does not divide heads 3"),
        ("gru", {"gate_bias": [3, 1]}, r"gate_bias is \[3.0, 1.0\]; expected \[low, high\]"),
        ("nowhere.to_be:Found", {}, r"block 'nowhere.to_be:Found' cannot be imported"),
    ],
)
def test_a_mistake_is_answered(kind, options, message):
    with pytest.raises(ValueError, match=message):
        resolve_options(kind, options, width=64)


def test_short_names_are_spelled_out():
    assert canonical_kind("gdn") == "gated_deltanet"
    assert canonical_kind("attn") == "attention"
    assert canonical_kind("m2rnn") == "m2rnn"


def test_whole_numbers_pass_for_numbers_and_lists_for_pairs():
    options = resolve_options("m2rnn", {"gate_bias": [1, 3], "weight_std": 1}, width=64)
    assert options.gate_bias == (1.0, 3.0)
    assert isinstance(options.weight_std, float)


def test_everything_that_follows_from_the_width_is_a_number_once_resolved():
    options = resolve_options("m2rnn", {}, width=1024)
    assert (options.value_heads, options.forget_heads, options.weight_heads) == (84, 84, 84)
    assert resolve_options("m2rnn", {"query_heads": 4}, width=64).value_heads == 4
    gdn = resolve_options("gdn", {}, width=1536)
    assert (gdn.key_heads, gdn.value_heads, gdn.key_dim, gdn.value_dim) == (3, 3, 256, 512)
