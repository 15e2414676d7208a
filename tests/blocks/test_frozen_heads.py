"""The published gate in bfloat16 freezes the slowest heads at their start; in float32 none."""

import math

import pytest
import torch

from blocks.contract import Case
from tests.blocks.frozen_heads import LARGEST_BELOW_ONE, expected_share, frozen_shares


def test_one_head_in_38_starts_frozen():
    """2.63 % by arithmetic; of the 25,200 heads of 300 layers it lies within 4 deviations."""
    expected = expected_share()
    assert expected == pytest.approx(0.0263, abs=5e-5)
    shares = frozen_shares(300)
    assert shares["at zero"] == pytest.approx(expected, abs=4 * math.sqrt(expected / 25_200))
    assert shares["float32"] == 0
    assert shares["throughout"] < shares["at zero"] < shares["of tokens"]


def test_a_frozen_head_is_never_written_and_its_neighbours_are():
    slowest = torch.tensor([1 - LARGEST_BELOW_ONE, 0.0021, 0.01])  # 1 - f of three heads
    for precision, frozen in (("bfloat16", [True, False, False]), ("float32", [False] * 3)):
        options = {
            "value_heads": 3, "key_dim": 4, "value_dim": 4, "gate": "constant",
            "gate_precision": precision,
        }  # fmt: skip
        case = Case(kind="m2rnn", options=options)
        layer = case.filled(torch.float32)
        decay = layer.get_submodule("forget.decay")
        with torch.no_grad():
            decay.get_parameter("A_log").zero_()
            rate = -torch.log1p(-slowest)
            decay.get_parameter("dt_bias").copy_(torch.log(torch.expm1(rate)))
        _, state = layer(case.inputs(torch.float32))
        still = (state["state"] == 0).flatten(2).all(dim=2).all(dim=0)
        assert still.tolist() == frozen, precision
