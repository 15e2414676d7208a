"""RNN, GRU and LSTM scans: hand-written backward passes against autograd of the loops."""

import itertools

import pytest
import torch

from kernels.rnn import gru_scan, lstm_scan, rnn_scan

SCANS = [rnn_scan, gru_scan, lstm_scan]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
B, N, V = 3, 2, 4


def make_inputs(scan, length, dtype=torch.float64):
    """(inputs over time, weights, state), each tensor needing a gradient."""
    generator = torch.Generator().manual_seed(length)

    def normal(*shape, scale=1.0):
        x = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
        return x.to(dtype).requires_grad_()

    wide = 4 * V if scan is lstm_scan else V
    over_time = [normal(B, length, N, wide) for _ in range(3 if scan is gru_scan else 1)]
    weights = [normal(N, V, wide, scale=0.5) for _ in over_time]
    state = [normal(B, N, V, scale=0.3) for _ in range(2 if scan is lstm_scan else 1)]
    return over_time, weights, state


def results(scan, inputs, **modes):
    leaves = list(itertools.chain(*inputs))
    out = scan(*leaves, **modes)
    generator = torch.Generator().manual_seed(9)
    upstream = [torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in out]
    return *out, *torch.autograd.grad(out, leaves, upstream)


def assert_close(found, expected, tolerance):
    for a, b in zip(found, expected, strict=True):
        assert (a - b).abs().max().item() <= tolerance * (1 + b.abs().max().item())


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("clip", ["none", "carry", "sum"])
@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("length", [1, 23])
def test_hand_written_backward_equals_autograd_of_the_loop(scan, clip, resets, length):
    inputs = make_inputs(scan, length)
    modes: dict = {"clip": clip}
    if resets:
        modes["reset"] = torch.rand(B, length, generator=torch.Generator().manual_seed(1)) < 0.2
    fast = results(scan, inputs, backend="torch", **modes)
    assert_close(fast, results(scan, inputs, backend="loop", **modes), 1e-10)


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("backend", ["loop", "torch"])
def test_gradients_are_those_of_finite_differences(scan, backend):
    leaves = list(itertools.chain(*make_inputs(scan, 4)))
    assert torch.autograd.gradcheck(lambda *x: scan(*x, backend=backend), leaves, fast_mode=True)


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_pieces_with_carried_state_equal_the_whole(scan, dtype):
    over_time, weights, state = make_inputs(scan, 30, dtype)
    whole = scan(*over_time, *weights, *state)
    outputs = []
    for start, end in itertools.pairwise([0, 1, 9, 30]):
        y, *state = scan(*(x[:, start:end] for x in over_time), *weights, *state)
        outputs.append(y)
    assert_close([torch.cat(outputs, dim=1), *state], whole, TOLERANCE[dtype])


@pytest.mark.parametrize("scan", SCANS)
def test_a_reset_hides_everything_before_it(scan):
    over_time, weights, state = make_inputs(scan, 20)
    reset = torch.zeros(B, 20, dtype=torch.bool)
    reset[0, 0] = reset[:, 9] = True
    packed, *last = scan(*over_time, *weights, *state, reset=reset)
    alone, *last_alone = scan(*(x[:, 9:] for x in over_time), *weights)
    assert_close([packed[:, 9:], *last], [alone, *last_alone], 1e-12)


@pytest.mark.parametrize("scan", SCANS)
def test_a_wrong_shape_is_named(scan):
    over_time, weights, state = make_inputs(scan, 3)
    weights[0] = torch.zeros(N, V, V + 1)
    with pytest.raises(ValueError, match=r"weight has shape \(2, 4, 5\); expected \(2, 4, "):
        scan(*over_time, *weights, *state)
