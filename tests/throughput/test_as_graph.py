"""A forward pass as a graph is timed only if it gives what the plain one gives.

Without a GPU a recorder stands in: it keeps a step's result and repeats the step into it.
"""

import pytest
import torch

from arch_search.planning import make_plan
from arch_search.run_settings import ResourceSpec
from arch_search.storage import Root
from arch_search.throughput.as_graph import as_graph
from arch_search.throughput.contender import Contender, Turn
from arch_search.throughput.lane import _reading
from arch_search.throughput.record import _cell
from arch_search.throughput.settings import Cell, ThroughputSpec

CPU = torch.device("cpu")


def repeated(step):
    result = step()
    return result, lambda: result.copy_(step())


def refuses(step):
    raise RuntimeError("operation not permitted when stream is capturing\nand more")


def forgets(step):
    result = step()
    return result, result.zero_


def test_a_step_is_repeated_if_its_graph_gives_the_same_tokens():
    tokens = torch.tensor([[3], [5]])
    replay, why_not = as_graph(lambda: tokens + 1, CPU, repeated)
    assert (replay is not None, why_not) == (True, "")
    other = as_graph(lambda: tokens + 1, CPU, forgets)
    assert other == (None, "its graph gives other tokens")
    refused = as_graph(lambda: tokens + 1, CPU, refuses)
    assert refused == (None, "RuntimeError: operation not permitted when stream is capturing")
    assert as_graph(lambda: tokens + 1, CPU) == (None, "")  # no GPU, nothing to say


def test_a_row_says_how_it_was_launched():
    base = {"state": "ok", "kind": "decode", "milliseconds": 2.5, "tokens_per_second": 400.0}
    graphed = Turn(seconds=[1.0], launched=[0.03, 0.05], peak_bytes=0, cache_bytes=1000)
    row = base | _reading([graphed, graphed])
    assert _cell(row) == "2.5 (40 ms kernel by kernel; 1,000 B)"
    plain = Turn(seconds=[1.0], no_graph="its graph gives other tokens", peak_bytes=0)
    assert _reading([plain]) == {"cache_bytes": 0, "no_graph": "its graph gives other tokens"}
    assert _cell(base | _reading([plain])) == "2.5 (kernel by kernel; 0 B)"
    quiet = Turn(seconds=[1.0], peak_bytes=0, cache_bytes=7)
    assert _cell(base | _reading([quiet])) == "2.5 (7 B)"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", ["decode", "prefill"])
@pytest.mark.parametrize("pattern", ["m2rnn attn", "gdn gdn", "mamba2 gru"])
def test_blocks_are_read_and_decoded_as_graphs(file, tmp_path, pattern, kind):
    overrides = [f"model.pattern={pattern}", "train.precision=bfloat16", "~arms"]
    plan = make_plan(file, Root(tmp_path).make(), overrides)
    one = Contender(plan.arms[0], torch.device("cuda", 0), resources=ResourceSpec(gpus=1))
    spec = ThroughputSpec(steps=3, decode_tokens=3)
    turn = one.turn(Cell(kind=kind, batch=2, length=300), spec)
    assert turn.no_graph == ""
    assert len(turn.seconds) == len(turn.launched) == 3
