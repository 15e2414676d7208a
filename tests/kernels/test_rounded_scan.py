"""The emulation that the GPU kernels are held against is the scan itself, but for its rounding."""

import pytest

from kernels.m2rnn.checking import Shape, errors_of, make_case, widened
from tests.kernels.rounded_scan import rounded_scan

CASES = [
    {"weight": "dense", "nonlinearity": "tanh", "clip": "carry", "reset": True},
    {"weight": "diagonal", "nonlinearity": "softsign", "clip": "sum", "state": False},
    {"weight": "identity", "nonlinearity": "hard_tanh", "clip": "none"},
    {"weight": "dense", "nonlinearity": "relu", "clip": "carry", "reset": True},
    {"weight": "dense", "nonlinearity": "identity", "clip": "sum"},
]
SHAPE = Shape(B=2, T=37, N=4, K=5, V=6, Nq=2, Nk=1, Nv=4, Nf=1, Nw=2)


@pytest.mark.parametrize("options", CASES, ids=lambda o: "-".join(map(str, o.values())))
def test_it_is_the_scan_when_nothing_is_rounded(options):
    case = widened(make_case(SHAPE, **options))
    for name, error in errors_of(rounded_scan(case, lambda x: x), case).items():
        assert error < 1e-12, name


def test_rounding_costs_what_bfloat16_costs():
    case = widened(make_case(SHAPE, clip="carry"))
    found = errors_of(rounded_scan(case), case)
    assert all(1e-5 < found[name] < 1.5e-2 for name in ("output", "d_key", "d_value", "d_weight"))
