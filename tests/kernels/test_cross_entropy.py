"""The loss in pieces against the plain loss of all logits, values and gradients."""

import pytest
import torch

from kernels.cross_entropy import linear, linear_cross_entropy

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}


def results(backend, dtype, *, rows=391, vocabulary=1003, width=24):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, rows // 3, width, generator=generator, dtype=torch.float64)
    w = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64)
    y = torch.randint(vocabulary, (3, rows // 3), generator=generator)
    y[0, ::5] = linear.IGNORED
    x, w = x.to(dtype).requires_grad_(), w.to(dtype).requires_grad_()
    loss = linear_cross_entropy(x, w, y, backend=backend) / 300
    return loss, *torch.autograd.grad(loss, [x, w])


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("pieces", [1, 4])
def test_pieces_give_the_plain_loss_and_its_gradients(dtype, pieces, monkeypatch):
    monkeypatch.setitem(linear.PIECE_ELEMENTS, "cpu", 1003 * (128 if pieces == 4 else 1024))
    assert -(-390 // linear._rows(390, 1003, "cpu")) == pieces
    for found, expected in zip(results("chunked", dtype), results("full", dtype), strict=True):
        assert (found - expected).norm() <= TOLERANCE[dtype] * expected.norm()


def test_the_full_loss_is_torchs_to_the_bit():
    loss, dx, dw = results("full", torch.float32)
    again, *grads = results("auto", torch.float32)
    assert torch.equal(loss, again)
    assert torch.equal(dx, grads[0])
    assert torch.equal(dw, grads[1])


def test_a_large_vocabulary_never_has_all_its_logits():
    rows = linear._rows(8 * 4096, 100_352, "cuda")
    assert rows % linear.ROWS == 0
    assert rows * 100_352 <= linear.PIECE_ELEMENTS["cuda"]
    assert linear._rows(5, 100_352, "cpu") == 5


def test_under_autocast_the_products_are_bfloat16_and_the_sums_float32():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = results("chunked", torch.float32)
    expected = results("full", torch.float32)
    assert found[0].dtype == torch.float32
    assert (found[0] - expected[0]).abs() < 0.01 * expected[0]
    for grad, plain in zip(found[1:], expected[1:], strict=True):
        assert (grad - plain).norm() < 0.02 * plain.norm()
