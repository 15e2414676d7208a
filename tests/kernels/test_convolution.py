"""The short convolution against torch's own, whole and in pieces, across document borders."""

import pytest
import torch
import torch.nn.functional as F

from kernels.convolution import causal_convolution


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 11, 3), (3, 4), (3,)]
    return [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]


def test_it_is_a_padded_depthwise_convolution(inputs):
    x, weight, bias = inputs
    y, last = causal_convolution(x, weight, bias)
    padded = F.pad(x.mT, (3, 0))
    expected = F.conv1d(padded, weight[:, None], bias, groups=3).mT
    assert torch.allclose(y, expected, atol=1e-12)
    assert torch.equal(last, x[:, -3:])


@pytest.mark.parametrize("resets", [False, True])
def test_pieces_with_carried_inputs_equal_the_whole(inputs, resets):
    x, weight, bias = inputs
    reset = None
    if resets:
        reset = torch.zeros(2, 11, dtype=torch.bool)
        reset[0, 2] = reset[1, 4] = reset[1, 5] = True
    whole, last = causal_convolution(x, weight, bias, reset=reset)
    outputs, state = [], None
    for s in (slice(0, 1), slice(1, 3), slice(3, 5), slice(5, 11)):
        piece = None if reset is None else reset[:, s]
        y, state = causal_convolution(x[:, s], weight, bias, state, reset=piece)
        outputs.append(y)
    assert torch.allclose(torch.cat(outputs, dim=1), whole, atol=1e-14)
    assert torch.equal(state, last)


def test_a_document_sees_nothing_of_the_one_before(inputs):
    x, weight, bias = inputs
    reset = torch.zeros(2, 11, dtype=torch.bool)
    reset[:, 6] = True
    packed, _ = causal_convolution(x, weight, bias, torch.ones(2, 3, 3), reset=reset)
    alone, _ = causal_convolution(x[:, 6:], weight, bias)
    assert torch.equal(packed[:, 6:], alone)
