"""The Triton kernels on a CPU: run by the interpreter, and what they refuse."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
from kernels.errors import BackendUnavailable
from kernels.m2rnn import m2rnn_scan
from kernels.rnn import gru_scan

HERE = Path(__file__).parent


@pytest.mark.slow
def test_in_the_interpreter():
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", str(HERE / "interpreted_triton.py")]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=900, cwd=HERE.parents[1]
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout


def test_refuses_the_cpu_by_name():
    x = torch.randn(1, 3, 1, 4)
    with pytest.raises(BackendUnavailable, match="the tensors are on cpu"):
        m2rnn_scan(x, x, x, torch.rand(1, 3, 1), None, backend="triton")
    with pytest.raises(BackendUnavailable, match="the tensors are on cpu"):
        gru_scan(x, x, x, *[torch.randn(1, 4, 4)] * 3, backend="triton")


def test_chooses_torch_on_a_cpu():
    x = torch.randn(1, 3, 1, 4)
    automatic = m2rnn_scan(x, x, x, torch.rand(1, 3, 1), None)
    assert automatic[0].shape == (1, 3, 1, 4)
