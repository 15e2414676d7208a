"""What `arch-search blocks` says of backends is what the code does."""

from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch

from blocks.registry import BLOCKS, block_class
from kernels.backends import BACKENDS
from kernels.coverage import coverage
from kernels.m2rnn.reference import Nonlinearity

pytest.importorskip("triton")
from kernels.m2rnn import fast_scan, triton_scan
from kernels.rnn.triton_scan import MAX_FLOAT32_LSTM, MAX_VALUE


@pytest.mark.parametrize("kernel", BACKENDS)
def test_every_backend_is_explained(kernel):
    rows = coverage(kernel)
    assert {row.backend.split(",")[0] for row in rows} == set(BACKENDS[kernel])
    assert all(row.runs_on and row.covers for row in rows)


@pytest.mark.parametrize("kind", BLOCKS)
def test_every_block_names_its_kernels(kind):
    assert block_class(kind).kernels
    assert all(coverage(kernel) for kernel in block_class(kind).kernels)


def on_gpu(V: int, dtype: torch.dtype = torch.bfloat16) -> Any:
    """A tensor's description, as the choice of a kernel reads it."""
    return SimpleNamespace(device=torch.device("cuda", 0), dtype=dtype, shape=(1, 1, 1, V))


def test_the_words_about_m2rnn_are_true():
    fast, plain = coverage("m2rnn")[-2:]
    assert "value_dim 16, 32" in fast.covers
    for V in (8, 16, 20, 32, 64):
        x = on_gpu(V)
        assert fast_scan.covers(x, x, None, "tanh", False) == (V in (16, 32))
    x, wide = on_gpu(16), on_gpu(16, torch.float32)
    assert "every nonlinearity but norm_clip" in fast.covers
    assert set(fast_scan.PHIS) == set(get_args(Nonlinearity)) - {"norm_clip"}
    assert "every gate but state" in fast.covers
    assert not fast_scan.covers(x, x, torch.zeros(1), "tanh", False)
    assert "write outer" in fast.covers
    assert not fast_scan.covers(x, x, None, "tanh", True)
    assert "bfloat16" in fast.covers
    assert not fast_scan.covers(wide, wide, None, "tanh", False)
    assert f"key_dim to {triton_scan.MAX_KEY}" in fast.covers
    assert f"value_dim to {triton_scan.MAX_VALUE}" in plain.covers
    assert f"{triton_scan.MAX_DELTA} state elements" in plain.covers


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_the_words_about_the_vector_cells_are_true(cell):
    less = f", in float32 to {MAX_FLOAT32_LSTM}" if cell == "lstm" else ""
    assert coverage(cell)[-1].covers.endswith(f"to {MAX_VALUE}{less}")
