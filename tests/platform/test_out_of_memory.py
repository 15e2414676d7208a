"""A batch that does not fit is cut into smaller pieces: same tokens, same learning, and said so."""

import json
import os
import subprocess
import sys

import pytest
import torch

from arch_search import micro_batches
from arch_search.journal import read_curve, read_journal, read_stream
from arch_search.micro_batches import accumulate_gradients, is_out_of_memory
from arch_search.model import next_token_loss

from .conftest import FIRST, plan_for, run_one

# The logits and activations of 96 windows of 256 tokens take several hundred MiB.
LARGE = (
    *("data.sequence_length=256", "data.batch=96", "train.tokens=73728", "model.width=64"),
    *("log={every: 1, checkpoint_every: 2, validate_every: 3, validation_tokens: 1000}",),
    "evaluate=[{perplexity: {tokens_per_document: 64}}]",
)
# What a process frees goes back at once and its threads share one heap, so that the limit counts
# what lives: from 150 to 600 MiB above its start the run halves its batch and ends.
FREED_AT_ONCE = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(2**20)}
LIMITED = """
import json, resource, sys
from pathlib import Path
import psutil, torch
from arch_search.attempt import Attempt
from arch_search.planning import make_plan
from arch_search.run_task import execute
from arch_search.storage import Root

file, where, overrides = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
torch.set_num_threads(1)
torch.ones(4, 4, requires_grad=True).matmul(torch.ones(4, 4)).sum().backward()
root = Root(where)
plan = make_plan(Path(file), root, overrides)
run = plan.runs[0]
folder = root.run(run.hash)
folder.freeze(run.spec)
limit = psutil.Process().memory_info().vms + 350 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
with Attempt.claim(folder, experiment=plan.name) as attempt:
    execute(attempt, run.spec, log=plan.log, resources=plan.resources,
            evaluations=plan.evaluations, root=root)
"""


def losses(folder):
    return [p.values["train/loss"] for p in read_curve(folder) if "train/loss" in p.values]


def test_a_process_short_of_memory_halves_its_pieces_and_learns_the_same(root, prepared):
    from .conftest import SMALL

    plan = plan_for(prepared, *LARGE)
    whole = run_one(prepared, plan, plan.runs[0])
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(FIRST), str(root.path), json.dumps([*SMALL, *LARGE])],
        env={**os.environ, **FREED_AT_ONCE, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    cut = root.run(plan.runs[0].hash)
    used = cut.result()["micro_batch"]
    assert used["halved_at"][0] == 1
    assert 1 <= used["used"] < 96
    assert cut.result()["environment"]["micro_batch"] == used["used"]
    records, _ = read_journal(cut.attempts()[0].journal)
    assert any("out of memory at step 1 with 96 sequences" in r.text for r in records)
    assert whole.result()["micro_batch"] == {"used": 0, "halved_at": []}
    assert read_stream(cut) == read_stream(whole)
    assert losses(cut) == pytest.approx(losses(whole), abs=1e-4)


class Hungry(torch.nn.Module):
    """Runs out of memory above `fits` sequences, after it has left gradients behind."""

    def __init__(self, fits):
        super().__init__()
        self.embedding, self.fits, self.seen = torch.nn.Embedding(9, 9), fits, []

    def loss(self, tokens, targets, *, reset=None):
        self.seen.append(len(tokens))
        if len(tokens) > self.fits:
            self.embedding.weight.grad = torch.full((9, 9), 7.0)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return next_token_loss(self.embedding(tokens), targets)

    def router_loss(self):
        return None


def test_a_retried_step_begins_without_the_gradients_of_the_failed_one():
    tokens = torch.arange(70).reshape(10, 7) % 9
    model, sizes = Hungry(3), []
    micro_batches.accumulate_within_memory(model, tokens, 0, "float32", halved=sizes.append)
    assert sizes == [5, 3]
    assert model.seen == [10, 5, 3, 3, 3, 1]
    again = Hungry(10)
    again.load_state_dict(model.state_dict())
    accumulate_gradients(again, tokens, 0, "float32")
    assert torch.allclose(model.embedding.weight.grad, again.embedding.weight.grad, atol=1e-7)


def test_one_sequence_that_does_not_fit_is_a_failure():
    sizes = []
    with pytest.raises(torch.OutOfMemoryError):
        micro_batches.accumulate_within_memory(
            Hungry(0), torch.zeros(4, 7, dtype=torch.long), 0, "float32", halved=sizes.append
        )
    assert sizes == [2, 1]


def test_another_error_is_not_taken_for_memory():
    assert not is_out_of_memory(RuntimeError("shapes (3, 4) and (5, 6) disagree"))
    assert is_out_of_memory(MemoryError())
