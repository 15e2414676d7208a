"""A small experiment file that needs no corpus, and its lane measured once."""

from pathlib import Path

import pytest
import torch

from arch_search.experiment import load
from arch_search.plan_spec import Plan
from arch_search.planning import make_plan
from arch_search.storage import Root
from arch_search.throughput.lane import measure
from arch_search.throughput.record import Record

FILE = """
name: small
model: {pattern: gdn attn, width: 32, mlp: {width: 32}}
data: {corpus: elsewhere, vocabulary: 64, sequence_length: 32, batch: 2}
train: {tokens: 6400}
baseline: {}
arms:
  explicit:
    recurrent: {model: {pattern: m2rnn attn}}
throughput:
  rounds: 2
  steps: 2
  contexts: [16, 64]
  batches: [1]
  prefill: [[1, 64]]
  decode: [[2, 32]]
  decode_tokens: 3
"""


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files") / "small.yaml"
    path.write_text(FILE)
    return path


@pytest.fixture(scope="session")
def plan(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return make_plan(file, Root(tmp_path_factory.mktemp("root")).make())


@pytest.fixture(scope="session")
def record(file: Path, plan: Plan) -> Record:
    return measure(plan.name, plan.arms, load(file).throughput, device=torch.device("cpu"))
