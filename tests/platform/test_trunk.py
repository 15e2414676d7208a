"""Runs of one trunk: a longer one that begins where a shorter one left off is the same run."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from arch_search.journal import read_curve
from arch_search.optim import learning_rate_share
from arch_search.plan_spec import PlannedRun
from arch_search.spec import DataSpec, LayerSpec, ModelSpec, RunSpec, ScheduleSpec, TrainSpec
from arch_search.trunk import Trunk, trunk_hash

from .conftest import plan_for, run_one

PER_STEP = 4 * 64


def of_length(spec: RunSpec, steps: int, *, warmup_steps: int = 3, decay: float = 0.25) -> RunSpec:
    schedule = ScheduleSpec(name="wsd", warmup=warmup_steps / steps, decay=decay, final=0.1)
    return replace(spec, train=replace(spec.train, tokens=steps * PER_STEP, schedule=schedule))


def test_a_forked_run_ends_as_one_from_scratch_to_the_bit(root, tmp_path):
    plan = plan_for(root)
    spec = plan.runs[1].spec
    short, middle, long = (of_length(spec, steps) for steps in (12, 18, 31))
    forking = replace(plan, log=replace(plan.log, keep_trunk=True))

    def run(of, with_plan):
        folder = run_one(root, with_plan, PlannedRun(arm="a", seed=0, hash=of.hash, spec=of))
        step, _, path = folder.latest_checkpoint()
        assert step == of.steps
        return folder.result(), load_file(path / "model.safetensors"), read_curve(folder)

    assert trunk_hash(short) == trunk_hash(middle) == trunk_hash(long)
    assert run(short, forking)[0]["forked_at"] == 0
    assert run(middle, forking)[0]["forked_at"] == 9, "18 steps less a quarter begin at 12 less 3"
    forked, forked_weights, curve = run(long, forking)
    assert forked["forked_at"] == 14
    assert curve[0].step > 14
    for other in (short, middle, long):
        (root.run(other.hash).path).rename(tmp_path / other.hash)
    scratch, scratch_weights, _ = run(long, plan)
    assert scratch["forked_at"] == 0
    assert scratch_weights.keys() == forked_weights.keys()
    assert all(torch.equal(scratch_weights[name], forked_weights[name]) for name in forked_weights)
    assert scratch["stream"] == forked["stream"]
    assert scratch["metrics"]["train/final_loss"] == forked["metrics"]["train/final_loss"]


def test_runs_share_a_trunk_exactly_while_their_learning_rates_agree(tmp_path):
    layer = LayerSpec(kind="attention", options={}, mlp_width=8)
    base = RunSpec(
        model=ModelSpec(layers=(layer,), width=8, vocabulary=257, tie_embeddings=True),
        data=DataSpec(corpus="sotu", tokenizer="bytes", sequence_length=64, batch=4),
        train=TrainSpec(tokens=1), init_seed=0, data_seed=0, code="c",
    )  # fmt: skip
    short, long = of_length(base, 40), of_length(base, 400, decay=0.5)
    end = Trunk(tmp_path, short).end
    shares = [
        [learning_rate_share(step, spec.steps, spec.train.schedule) for step in range(40)]
        for spec in (short, long)
    ]
    assert end == 30
    assert shares[0][: end + 1] == shares[1][: end + 1]
    assert shares[0][end + 1] < shares[1][end + 1] == 1.0
    assert trunk_hash(short) == trunk_hash(long)
    assert trunk_hash(of_length(base, 40, warmup_steps=4)) != trunk_hash(short)
    assert trunk_hash(replace(short, init_seed=1)) != trunk_hash(short)
    assert trunk_hash(replace(short, code="d")) != trunk_hash(short)
    faster = replace(short.train, optimiser=replace(short.train.optimiser, learning_rate=1e-3))
    assert trunk_hash(replace(short, train=faster)) != trunk_hash(short)


def test_a_cosine_has_no_trunk(tmp_path, root):
    spec = plan_for(root).runs[0].spec
    with pytest.raises(ValueError, match="need wsd"):
        Trunk(tmp_path, spec)
