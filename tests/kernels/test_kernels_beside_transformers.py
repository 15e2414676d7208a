"""Our package `kernels` has the name of one that transformers looks for; both must still work."""

import subprocess
import sys

BESIDE = """
import torch
import kernels.m2rnn.reference
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import is_kernels_available

assert not is_kernels_available(), "transformers takes our package for the one it looks for"
config = LlamaConfig(
    vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
)
logits = LlamaForCausalLM(config)(torch.zeros(1, 4, dtype=torch.long)).logits
assert logits.shape == (1, 4, 32) and logits.isfinite().all()
print("ran")
"""


def test_transformers_imports_and_runs_beside_our_kernels():
    run = subprocess.run(
        [sys.executable, "-c", BESIDE], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip().endswith("ran")
