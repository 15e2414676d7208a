"""Shorter rows first, gradients cut off with the state carried, and starts from other weights."""

import json
from dataclasses import asdict, replace

import pytest
import torch
from safetensors.torch import load_file

from arch_search.errors import Stopped, UsageError
from arch_search.micro_batches import accumulate_gradients
from arch_search.model import build_model, next_token_loss
from arch_search.planning import make_plan
from arch_search.segments import cut_rows, row_length
from arch_search.spec import CurriculumSpec, LayerSpec, ModelSpec, run_from_json, run_to_json
from arch_search.stored_model import find_stored_model, keep_imported

from .conftest import FIRST, SMALL, plan_for, run_one

SMALLER = ("train.tokens=3072", "evaluate=[perplexity]", "model.pattern=gdn")  # 12 steps
AIDS = ("data.curriculum={first: 16, steps: 8}", "train.truncate=32")


def weights(folder):
    found = folder.latest_checkpoint()
    return load_file(found[2] / "model.safetensors")


def test_keys_that_nobody_uses_change_no_hash(root):
    run = plan_for(root).runs[0]
    content = json.loads(run_to_json(run.spec))
    del content["train"]["truncate"], content["train"]["start"]
    assert run_from_json(json.dumps(content)).hash == run.hash
    for changes in ({"truncate": 32}, {"start": "ab" * 8}):
        assert replace(run.spec, train=replace(run.spec.train, **changes)).hash != run.hash


def test_rows_are_cut_into_the_same_tokens():
    tokens = torch.arange(2 * 17).view(2, 17)
    resets = torch.rand(2, 16) < 0.2
    rows, starts, parts = cut_rows(tokens, resets, 4)
    assert (rows.shape, starts.shape, parts) == ((8, 5), (8, 4), 4)
    assert rows[:, :-1].reshape(2, 16).equal(tokens[:, :-1])
    assert rows[:, 1:].reshape(2, 16).equal(tokens[:, 1:])
    assert starts.reshape(2, 16).equal(resets)
    assert cut_rows(tokens, resets, 16)[0] is tokens


def test_a_corpus_has_a_curriculum_that_its_rows_can_be_cut_by(root):
    data = replace(plan_for(root).arms[0].data, curriculum=CurriculumSpec(first=16, steps=8))
    assert [row_length(data, step) for step in (0, 3, 4, 7, 8, 99)] == [16, 16, 32, 32, 64, 64]
    with pytest.raises(UsageError, match=r"curriculum.first 48: rows of 64 tokens"):
        plan_for(root, "data.curriculum={first: 48, steps: 4}")


@pytest.mark.parametrize("kind", ["gated_deltanet", "mamba2", "m2rnn", "gru", "attention"])
def test_truncated_gradients_are_those_of_segments_with_the_state_detached(kind):
    layers = (LayerSpec(kind=kind, options={}, mlp_width=16),) * 2
    spec = ModelSpec(layers=layers, width=16, vocabulary=29, tie_embeddings=True)
    model = build_model(spec, seed=0).double()
    tokens = torch.randint(0, 29, (4, 25), generator=torch.Generator().manual_seed(1))
    loss = accumulate_gradients(model, tokens, 2, "float32", truncate=10)
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    states, total = None, torch.zeros((), dtype=torch.float64)
    for first, last in ((0, 10), (10, 20), (20, 24)):
        logits, states = model(tokens[:, first:last], states)
        targets = tokens[:, first + 1 : last + 1].flatten()
        total = total + torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), targets, reduction="sum"
        )
        states = [{k: v.detach() for k, v in state.items()} for state in states]
    (total / 96).backward()
    assert loss.item() == pytest.approx(total.item() / 96, rel=1e-6)  # the loss is float32
    for name, parameter in model.named_parameters():
        assert torch.allclose(found[name], parameter.grad, atol=1e-6), name
    whole = next_token_loss(model(tokens[:, :-1])[0], tokens[:, 1:]).item() / 96
    assert loss.item() == pytest.approx(whole, rel=1e-5)  # only gradients are cut, no state


def test_a_run_with_every_aid_resumes_to_the_bit_and_sees_the_same_tokens(root):
    plain = plan_for(root, *SMALLER).runs[0]
    aided = plan_for(root, *SMALLER, *AIDS)
    run = aided.runs[0]
    whole = run_one(root, aided, run)
    expected, stream = weights(whole), whole.result()["stream"]
    whole.path.rename(root.path / "whole")

    def stop_at(attempt):
        checked = attempt.check

        def check():
            checked()
            if attempt.latest_checkpoint() and attempt.number == 1:
                raise Stopped("KILLED", "test")

        attempt.check = check

    with pytest.raises(Stopped):
        run_one(root, aided, run, before=stop_at)
    resumed = run_one(root, aided, run)
    assert len(resumed.attempts()) == 2
    found = weights(resumed)
    assert found.keys() == expected.keys()
    assert all(found[name].equal(expected[name]) for name in expected)
    other = run_one(root, replace(aided, runs=(plain,)), plain)
    assert other.result()["stream"] == resumed.result()["stream"] == stream
    assert any(not weights(other)[name].equal(expected[name]) for name in expected)


def test_training_goes_on_from_a_finished_run_at_another_length(root, tmp_path):
    file = tmp_path / "alone.yaml"
    file.write_text(
        "defaults: [base, data: sotu_bytes]\nname: alone\nbaseline: {}\n"
        "model: {pattern: gdn, width: 32, mlp: {width: 32}}\n"
        "data: {sequence_length: 64, batch: 4}\ntrain: {tokens: 2560}\nevaluate: [perplexity]\n"
    )
    first = make_plan(file, root)
    root.experiment("alone").path.mkdir(parents=True)
    root.experiment("alone").write_plan(first)
    longer = ("data.sequence_length=128", "data.batch=2", "train.start=alone/baseline/0")
    with pytest.raises(UsageError, match="has no checkpoint yet"):
        make_plan(file, root, longer)
    before = run_one(root, first, first.runs[0])
    plan = make_plan(file, root, longer)
    assert plan.runs[0].spec.train.start == first.runs[0].hash
    after = run_one(root, plan, plan.runs[0])
    begun = after.result()["starts"]
    assert begun != before.result()["starts"]
    imported = keep_imported(root, "kept", find_stored_model(root, first.runs[0].hash).load(), {})
    again = make_plan(file, root, (*longer[:-1], "train.start=kept"))
    assert again.runs[0].spec.train.start == imported.identity
    resumed = run_one(root, again, again.runs[0])
    assert resumed.result()["starts"] == begun
    assert all(weights(resumed)[name].equal(value) for name, value in weights(after).items())
    with pytest.raises(UsageError, match="layer 0 is gated_deltanet there and gru here"):
        make_plan(file, root, (*longer, "model.pattern=gru"))
    with pytest.raises(UsageError, match="width is 32 there and 16 here"):
        make_plan(file, root, (*longer, "model.width=16"))


def test_arms_that_use_an_aid_unlike_are_pointed_out(root):
    arms = "arms={explicit: {a: {}, b: {train: {truncate: 32}, model: {width: 16}}}}"
    plan = plan_for(root, *SMALLER, arms)
    assert any(f.subject == "train.truncate" and f.level == "warning" for f in plan.findings)
    declared = arms[:-1] + ", factors: [train.truncate, model.width]}"
    plan = plan_for(root, *SMALLER, declared)
    assert not any(f.subject == "train.truncate" for f in plan.findings)


def test_every_arm_at_every_length_with_as_many_tokens_a_step(root):
    plan = make_plan(FIRST, root, [*SMALL, "arms.lengths=[32, 64]", "train.tokens=6400"])
    sizes = {(a.data.sequence_length, a.data.batch, a.counts["steps"]) for a in plan.arms}
    assert sizes == {(32, 8, 25), (64, 4, 25)}
    assert len(plan.arms) == 2 * len(plan_for(root).arms)
    assert {a.factors["data.sequence_length"] for a in plan.arms} == {32, 64}
    assert not any(f.subject in ("data.batch", "data.sequence_length") and f.level == "warning"
                   for f in plan.findings), [asdict(f) for f in plan.findings]  # fmt: skip
    with pytest.raises(UsageError, match="no whole number of rows of 96"):
        make_plan(FIRST, root, [*SMALL, "arms.lengths=[96]"])
