"""The lane on a CPU: what is timed, in which order, and what happens to cells that fail."""

import json

import pytest
import torch
import vl_convert

from arch_search.records import read_experiment
from arch_search.run_settings import ResourceSpec
from arch_search.storage import Root
from arch_search.throughput import contender
from arch_search.throughput.contender import Contender
from arch_search.throughput.lane import failures, measure
from arch_search.throughput.record import markdown, read_record, write_record
from arch_search.throughput.settings import Cell, ThroughputSpec, cells_of
from arch_search.throughput.timing import summarise, summarise_ratio
from dashboards.report import make_report, write_report
from dashboards.throughput import write_picture
from tests.conftest import Planted, write_planted

CPU = torch.device("cpu")


def test_cells_are_the_own_batch_then_the_sweeps_each_once():
    spec = ThroughputSpec(tokens=65_536, contexts=(1024, 4096, 65_536), cells=((2, 16_384),))
    cells = cells_of(spec, batch=16, length=4096)
    train = [(c.batch, c.length, c.sweeps) for c in cells if c.kind == "train"]
    assert train == [
        (16, 4096, ("batch", "context")),
        (2, 16_384, ()),
        (64, 1024, ("context",)),
        (1, 65_536, ("context",)),
        (8, 4096, ("batch",)),
        (4, 4096, ("batch",)),
        (2, 4096, ("batch",)),
        (1, 4096, ("batch",)),
    ]
    assert [c.label for c in cells if c.kind != "train"] == [
        "prefill 1 x 4096", "decode 1 x 4096", "decode 16 x 4096",
    ]  # fmt: skip


def test_whatever_lies_on_a_sweep_is_a_point_of_it():
    spec = ThroughputSpec(contexts=(1024,), batches=(), cells=((2, 16_384),))
    cells = cells_of(spec, batch=8, length=4096)
    swept = {c.length for c in cells if "context" in c.sweeps}
    assert swept == {1024, 4096, 16_384}
    assert not any("batch" in c.sweeps for c in cells)


def test_by_default_contexts_go_from_1k_to_64k_and_batches_down_to_one():
    cells = cells_of(ThroughputSpec(), batch=16, length=4096)
    swept = sorted(c.length for c in cells if "context" in c.sweeps)
    assert swept == [1024 * 2**power for power in range(7)]
    assert {c.batch * c.length for c in cells if "context" in c.sweeps} == {65_536}
    assert sorted(c.batch for c in cells if "batch" in c.sweeps) == [1, 2, 4, 8, 16]


def test_a_context_that_does_not_divide_the_batch_is_refused():
    with pytest.raises(ValueError, match="1000 does not divide 4096 tokens"):
        cells_of(ThroughputSpec(contexts=(1000,)), batch=1, length=4096)


def test_the_record_holds_speeds_intervals_memory_flops_and_carried_bytes(record, plan):
    assert list(record["arms"]) == ["baseline", "recurrent"]
    for name, arm in record["arms"].items():
        assert arm["low"] <= arm["tokens_per_second"] <= arm["high"]
        assert (arm["n"], arm["rounds"]) == (4, 2)
        assert (arm["batch"], arm["length"]) == (2, 32)
        assert 0 < arm["mfu"] < 1
        planned = next(a for a in plan.arms if a.name == name)
        assert arm["forward_flops_per_token"] == planned.counts["forward_flops_per_token"]
        assert arm["model_flops_per_token"] == 3 * arm["forward_flops_per_token"]
        assert arm["peak_memory_gib"] > 0
    assert record["arms"]["recurrent"]["backends"]["m2rnn"] == "torch"
    assert len(record["cells"]) == 2 * 6
    assert not failures(record)
    assert any("CPU" in note for note in record["notes"])
    decoded = [c for c in record["cells"] if c["kind"] == "decode"]
    assert [len(c["every_millisecond"][0]) for c in decoded] == [3, 3]


def test_carried_bytes_are_those_of_the_counted_state(record, plan):
    """Attention's keys and values for each token, and its two int64 counters; the rest is state."""
    for arm in plan.arms:
        cell = next(c for c in record["cells"] if c["arm"] == arm.name and c["kind"] == "prefill")
        with torch.device("meta"):
            model = contender.LanguageModel(arm.model)
        costs = [layer.mixer.cost(64) for layer in model.layers]
        elements = sum(
            c.state_elements + c.convolution_elements + 64 * c.state_elements_per_token
            for c in costs
        )
        assert cell["cache_bytes"] == 4 * elements + 2 * 8


def test_arms_take_turns_and_the_first_turns_of_all_come_before_any_that_counts(plan, monkeypatch):
    order = []
    real = Contender.turn

    def noted(self, cell, spec):
        order.append(self.arm.name)
        return real(self, cell, spec)

    monkeypatch.setattr(Contender, "turn", noted)
    spec = ThroughputSpec(rounds=2, steps=1, contexts=(), batches=(), prefill=(), decode=())
    found = measure(plan.name, plan.arms, spec, device=CPU)
    assert order == ["baseline", "recurrent"] * 3
    assert found["arms"]["baseline"]["n"] == 2


def test_a_measurement_goes_on_where_it_was_cut(plan, record, monkeypatch):
    """Two cells are missing, as if cut before them, one of them because of a failure."""
    spec = ThroughputSpec(**record["settings"])
    cut = json.loads(json.dumps(record))
    cut["cells"] = [row for row in cut["cells"] if row["kind"] != "decode"]
    cut["cells"][3]["state"] = "failed: RuntimeError: no"  # one arm at the second cell
    cut["rankable"], told = False, "another process held 9.0 GiB of the device at the start"
    cut["notes"].append(told)
    timed, states = [], []
    real = Contender.turn

    def noted(self, cell, spec):
        timed.append((self.arm.name, cell.label))
        return real(self, cell, spec)

    def keep(now):
        states.append(json.loads(json.dumps(now)))

    monkeypatch.setattr(Contender, "turn", noted)
    found = measure(plan.name, plan.arms, spec, device=CPU, before=cut, report=keep)
    again = {cell for _, cell in timed}
    assert len(again) == 2
    assert {label.split()[0] for label in again} == {"train", "decode"}
    assert len(states[0]["cells"]) == len(record["cells"]) - 4  # what is kept is never dropped
    where = [(row["arm"], row["kind"], row["batch"], row["length"]) for row in record["cells"]]
    assert [(r["arm"], r["kind"], r["batch"], r["length"]) for r in found["cells"]] == where
    same = [a == b for a, b in zip(found["cells"], record["cells"], strict=True)]
    assert sum(same) == len(same) - 4
    assert found["arms"]["recurrent"]["backends"] == record["arms"]["recurrent"]["backends"]
    assert f"4 of 6 cells are of {record['measured']}" in found["notes"]
    assert not failures(found)
    assert not found["rankable"]  # some of its cells are not
    assert not found["arms"]["baseline"]["rankable"]
    assert told in found["notes"]


def test_what_timed_something_else_is_not_gone_on_with(plan, record):
    spec = ThroughputSpec(**{**record["settings"], "steps": 7})
    with pytest.raises(ValueError, match="other settings; measure anew"):
        measure(plan.name, plan.arms, spec, device=CPU, before=record)
    older = {**record, "environment": {**record["environment"], "git_commit": "abc"}}
    spec = ThroughputSpec(**record["settings"])
    with pytest.raises(ValueError, match="other code"):
        measure(plan.name, plan.arms, spec, device=CPU, before=older)
    with pytest.raises(ValueError, match="other arms"):
        measure(plan.name, plan.arms[:1], spec, device=CPU, before=record)
    first = ThroughputSpec(**{**record["settings"], "prefill": (), "decode": ()})  # fewer cells
    assert measure(plan.name, plan.arms, first, device=CPU, before=record)["cells"]


def test_a_step_changes_the_weights_as_training_does(plan):
    one = Contender(plan.arms[0], CPU, resources=ResourceSpec())
    before = {name: p.detach().clone() for name, p in one.model.named_parameters()}
    one.turn(Cell(kind="train", batch=2, length=32), ThroughputSpec(rounds=2, steps=1))
    moved = [name for name, p in one.model.named_parameters() if not torch.equal(p, before[name])]
    assert set(moved) == set(before)
    assert all(p.grad is None for p in one.model.parameters())


@pytest.mark.gpu
def test_an_arm_that_parks_leaves_the_device_between_its_turns(plan):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = torch.device("cuda", 0)
    before = torch.cuda.memory_allocated(device)
    one = Contender(plan.arms[0], device, resources=ResourceSpec(compile=False), parks=True)
    for _ in range(2):
        turn = one.turn(Cell(kind="train", batch=2, length=32), ThroughputSpec(rounds=2, steps=1))
        assert torch.cuda.memory_allocated(device) - before < 2**20
        assert turn.peak_bytes > 3 * sum(p.nbytes for p in one.model.parameters())


def test_out_of_memory_and_failing_cells_are_recorded_and_end_nothing(plan, monkeypatch):
    real = Contender.turn

    def short(self, cell, spec):
        if self.arm.name == "recurrent" and cell.length == 64:
            raise torch.OutOfMemoryError("CUDA out of memory")
        if self.arm.name == "baseline" and cell.kind == "decode":
            raise RuntimeError("no kernel for this\nand a second line")
        return real(self, cell, spec)

    monkeypatch.setattr(Contender, "turn", short)
    spec = ThroughputSpec(
        rounds=2, steps=1, contexts=(64,), batches=(), prefill=(), decode=((1, 32),)
    )
    kept = []
    found = measure(
        plan.name, plan.arms, spec, device=CPU, report=lambda r: kept.append(len(r["cells"]))
    )
    states = {(c["arm"], c["kind"], c["length"]): c["state"] for c in found["cells"]}
    assert states["recurrent", "train", 64] == "out of memory"
    assert states["baseline", "train", 64] == "ok"
    assert states["recurrent", "decode", 32] == "ok"
    assert failures(found) == [
        "baseline at decode 1 x 32: failed: RuntimeError: no kernel for this"
    ]
    assert "out of memory" in markdown(found)
    assert kept == [2, 4, 6]


def test_a_speed_beyond_the_devices_peak_is_refused(plan):
    spec = ThroughputSpec(
        rounds=2, steps=1, contexts=(), batches=(), prefill=(), decode=(), peak_tflops=1e-9
    )
    found = measure(plan.name, plan.arms[:1], spec, device=CPU)
    (cell,) = found["cells"]
    assert cell["state"].startswith("refused: MFU would be")
    assert "tokens_per_second" not in cell
    assert failures(found)


def test_intervals_know_that_values_of_one_round_belong_together():
    shifted = [[10.0, 10.1], [12.0, 12.1], [14.0, 14.1]]  # rounds differ, values within do not
    found = summarise(shifted)
    assert (found.n, found.rounds) == (6, 3)
    assert found.median == pytest.approx(12.05)
    assert found.low < 10.2
    assert found.high > 13.9


def test_a_ratio_is_taken_round_by_round():
    base = [[100.0, 101.0], [50.0, 50.5], [200.0, 202.0]]  # the machine slowed down and sped up
    half = [[value / 2 for value in turn] for turn in base]
    found = summarise_ratio(half, base)
    assert found.median == pytest.approx(0.5)
    assert found.low == pytest.approx(0.5)
    assert found.high == pytest.approx(0.5)
    with pytest.raises(ValueError, match="2 rounds against 3"):
        summarise_ratio(half[:2], base)


def test_records_are_read_back_and_drawn(record, tmp_path):
    root = Root(tmp_path).make()
    path = write_record(root, record)
    assert path == tmp_path / "throughput" / "small.json"
    assert read_record(root, "small") == json.loads(path.read_text())
    assert read_record(root, "other") is None
    svg = write_picture(record, tmp_path / "small.svg").read_text()
    for text in ("baseline", "recurrent", "context (tokens)", "Over baseline, turn by turn"):
        assert text in svg
    assert vl_convert.svg_to_png(svg)[:4] == b"\x89PNG"
    table = markdown(record)
    assert "gated_deltanet" in table
    assert "| 2 x 32 |" in table


def test_a_picture_of_a_single_cell_can_be_drawn(record, tmp_path):
    own = [c for c in record["cells"] if (c["batch"], c["length"]) == (2, 32)]
    cells = [{**cell, "sweeps": []} for cell in own]
    assert (
        "tokens per second"
        in write_picture(
            {**record, "cells": cells, "rankable": False}, tmp_path / "one.svg"
        ).read_text()
    )


def test_an_experiments_report_shows_what_the_lane_measured(record, tmp_path):
    root = write_planted(Planted(root=tmp_path, seeds=2))
    write_record(root, {**record, "experiment": "planted"})
    drawn = make_report(read_experiment("planted", root))
    assert "turn by turn" in drawn.figures["lane"].svg
    written = write_report(drawn, tmp_path / "report")
    (page,) = (path for path in written if path.name == "report.html")
    assert "a device of its own" in page.read_text()
