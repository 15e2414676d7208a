"""A forward pass as a graph is timed only if it gives what the plain one gives.

Without a GPU a recorder stands in: it keeps a step's result and repeats the step into it.
"""

import pytest
import torch

from arch_search.planning import make_plan
from arch_search.run_settings import ResourceSpec
from arch_search.storage import Root
from arch_search.throughput import contender
from arch_search.throughput.as_graph import as_graph
from arch_search.throughput.contender import Contender, Turn
from arch_search.throughput.lane import _row, _Times
from arch_search.throughput.record import AS_GRAPHS, _cell, markdown
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


def timed(turn: Turn, *more: Turn) -> _Times:
    return _Times(turns=[turn, *more])


GRAPHED = Turn(seconds=[1e-3] * 2, launched=[0.04] * 2, peak_bytes=0, cache_bytes=1000)
PLAIN = Turn(seconds=[0.04] * 2, no_graph="its graph gives other tokens", peak_bytes=0)


def row_of(plan, mine: _Times, base: _Times):
    arm, other = plan.arms
    cell = Cell(kind="decode", batch=1, length=64)
    return _row(arm, cell, {arm.name: mine, other.name: base}, other.name, {})


def test_speeds_of_one_kind_alone_are_compared(plan):
    both = row_of(plan, timed(GRAPHED, GRAPHED), timed(GRAPHED, GRAPHED))
    assert both["milliseconds"] == pytest.approx(1)
    assert both["ratio"] == pytest.approx(1)
    assert _cell(both) == "1 (40 ms kernel by kernel; 1,000 B)"
    one = row_of(plan, timed(GRAPHED, GRAPHED), timed(PLAIN, PLAIN))
    assert one["milliseconds"] == pytest.approx(1)
    assert one["ratio"] == pytest.approx(1)  # both kernel by kernel
    other = row_of(plan, timed(GRAPHED, PLAIN), timed(GRAPHED, GRAPHED))
    assert other["milliseconds"] == pytest.approx(40)
    assert other["ratio"] == pytest.approx(1)
    assert other["no_graph"] == "its graph gives other tokens"
    assert _cell(other) == "40 (kernel by kernel; 0 B)"


def test_a_record_says_that_it_reads_by_graphs(plan, record):
    cells = [row_of(plan, timed(GRAPHED), timed(GRAPHED))]
    assert AS_GRAPHS in markdown({**record, "cells": cells})
    assert AS_GRAPHS not in markdown(record)
    assert "gradients by CUDA graphs" in markdown({**record, "graphs": True})


@pytest.mark.parametrize(("kind", "calls"), [("decode", 5), ("prefill", 3)])
def test_each_call_is_timed_both_ways(plan, monkeypatch, kind, calls):
    monkeypatch.setattr(
        contender, "as_graph", lambda step, device: as_graph(step, device, repeated)
    )
    one = Contender(plan.arms[0], CPU, resources=ResourceSpec())
    spec = ThroughputSpec(steps=3, decode_tokens=5)
    turn = one.turn(Cell(kind=kind, batch=2, length=16), spec)
    assert (len(turn.seconds), len(turn.launched), turn.no_graph) == (calls, calls, "")
    assert turn.seconds != turn.launched


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_training_steps_go_by_a_graph_where_runs_do(file, tmp_path, caplog):
    plan = make_plan(file, Root(tmp_path).make(), ["train.precision=bfloat16", "~arms"])
    resources = ResourceSpec(gpus=1, compile=False, graphs=True)
    one = Contender(plan.arms[0], torch.device("cuda", 0), resources=resources)
    with caplog.at_level("INFO"):
        turn = one.turn(Cell(kind="train", batch=2, length=32), ThroughputSpec(steps=3))
    assert len(turn.seconds) == 3
    assert "go by a graph" in caplog.text
