import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file

from arch_search.attempt import Attempt
from arch_search.control import check_control
from arch_search.environment import earlier_environments
from arch_search.errors import Diverged, Stopped
from arch_search.journal import read_curve, read_stream, read_text
from arch_search.model import build_model, count_model
from arch_search.optim import learning_rate_share, make_optimiser
from arch_search.records import read_experiment
from arch_search.spec import OptimiserSpec, ScheduleSpec

from .conftest import plan_for, run_one, stop_after


def losses(folder):
    return [
        (p.step, p.values["train/loss"]) for p in read_curve(folder) if "train/loss" in p.values
    ]


def weights(folder):
    step, _, path = folder.latest_checkpoint()
    return step, load_file(path / "model.safetensors")


def test_a_run_leaves_a_result_a_curve_and_its_evaluations(root):
    plan = plan_for(root)
    folder = run_one(root, plan, plan.runs[0])
    result = folder.result()
    assert result["state"] == "FINISHED"
    assert result["steps"] == 25
    assert result["tokens"] == 25 * 4 * 64
    curve = losses(folder)
    assert [step for step, _ in curve] == [5, 10, 15, 20, 25]
    assert curve[-1][1] < curve[0][1] < math.log(257) + 0.1
    assert result["metrics"]["train/final_loss"] == curve[-1][1]
    perplexity, position = (folder.evaluation(e) for e in plan.evaluations)
    documents = perplexity["tables"]["documents"]
    expected = sum(documents["nats"]) / (math.log(2) * sum(documents["bytes"]))
    assert perplexity["metrics"]["val/bits_per_byte"] == pytest.approx(expected)
    assert documents["bytes"] == [256] * len(documents["bytes"])
    assert position["tables"]["loss_by_position"]["last"][-1] == 8 * 64 - 1
    assert len(result["starts"]) == len(weights(folder)[1])
    assert set(result["environment"]) >= {"versions", "device", "git_commit"}
    assert "m2rnn" not in result["environment"]["backends"]
    replaced = run_one(root, plan, plan.runs[1]).result()
    assert replaced["environment"]["backends"]["m2rnn"] == "torch"
    ours, theirs = result["starts"], replaced["starts"]
    same = {name for name in ours.keys() & theirs.keys() if ours[name] == theirs[name]}
    assert {"embedding.weight", "layers.1.mixer.output.weight", "layers.0.mlp.input.weight"} <= same


def test_what_two_arms_share_starts_equal_to_the_bit(root):
    plan = plan_for(root)
    baseline, replaced = (build_model(arm.model, seed=3).state_dict() for arm in plan.arms)
    assert not any(name.startswith("layers.0.mixer.") for name in shared_names(baseline, replaced))
    shared = shared_names(baseline, replaced)
    assert {
        "embedding.weight",
        "layers.1.mixer.output.weight",
        "layers.0.mlp.input.weight",
    } <= shared
    for name in shared:
        assert torch.equal(baseline[name], replaced[name]), name
    other = build_model(plan.arms[0].model, seed=4).state_dict()
    assert not torch.equal(baseline["embedding.weight"], other["embedding.weight"])


def shared_names(one, other):
    """Names with one shape in both models; the replaced layer's own mixer is another module."""
    same = {n for n in one.keys() & other.keys() if one[n].shape == other[n].shape}
    return {n for n in same if not n.startswith("layers.0.mixer.")}


@pytest.mark.parametrize("resources", [{"micro_batch": 1}, {"micro_batch": 2, "loader_workers": 2}])
def test_pieces_and_workers_change_neither_the_stream_nor_the_learning(root, prepared, resources):
    plan = plan_for(root)
    whole = run_one(root, plan, plan.runs[0])
    plain, text = whole.result()["stream"].values()
    curve = losses(whole)
    other_root = type(root)(root.path.parent / "other").make()
    (other_root.path / "data").symlink_to(root.path / "data")
    other = run_one(other_root, plan, plan.runs[0], **resources)
    assert other.result()["stream"] == {"tokens": plain, "text": text}
    assert read_stream(other) == read_stream(whole)
    assert read_text(other) == read_text(whole)
    assert read_text(whole)[25] == whole.result()["stream"]["text"]
    assert [loss for _, loss in losses(other)] == pytest.approx([x for _, x in curve], rel=1e-4)


def test_a_stopped_run_goes_on_to_the_same_weights_and_curve(root):
    plan = plan_for(root)
    run = plan.runs[1]
    undisturbed_root = type(root)(root.path.parent / "undisturbed").make()
    (undisturbed_root.path / "data").symlink_to(root.path / "data")
    expected = run_one(undisturbed_root, plan, run)
    for steps in (7, 6):  # stops after step 7, then after step 13
        with pytest.raises(Stopped):
            run_one(root, plan, run, before=stop_after(steps))
    folder = run_one(root, plan, run)
    assert [a.end()["state"] for a in folder.attempts()] == ["KILLED", "KILLED", "FINISHED"]
    assert [
        a.lease()["resumed_from"] and a.lease()["resumed_from"]["step"] for a in folder.attempts()
    ] == [None, 7, 13]
    assert losses(folder) == losses(expected)
    assert folder.result()["stream"] == expected.result()["stream"]
    (step, mine), (other_step, theirs) = weights(folder), weights(expected)
    assert step == other_step == 25
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_a_resumption_under_other_versions_is_said(root):
    plan = plan_for(root, "data.batch=2")
    with pytest.raises(Stopped):
        run_one(root, plan, plan.runs[0], before=stop_after(7))
    first = root.run(plan.runs[0].hash).attempt(1)
    here = first.environment()
    older = here | {"threads": 64, "versions": here["versions"] | {"torch": "2.9.9"}}
    first.write_environment(older)
    run = run_one(root, plan, plan.runs[0])
    said = run.result()["environment"]["earlier_attempts"]
    version = here["versions"]["torch"]
    assert said == (
        f"attempt 1, to step 7: threads 64 instead of {here['threads']}; "
        f"torch 2.9.9 instead of {version}"
    )
    assert said in run.attempt(2).journal.read_text()
    other = run_one(root, plan, plan.runs[1])
    assert other.result()["environment"]["earlier_attempts"] == ""
    root.experiment(plan.name).write_plan(plan)
    experiment = read_experiment(plan.name, root)
    warned = check_control(experiment, experiment.trained).warnings
    assert any("earlier attempts" in line and "torch 2.9.9" in line for line in warned)


def test_packages_that_came_or_went_between_attempts_are_said(root):
    plan = plan_for(root)
    run = root.run(plan.runs[0].hash)
    run.freeze(plan.runs[0].spec)
    with pytest.raises(Stopped):
        run_one(root, plan, plan.runs[0], before=stop_after(7))
    with Attempt.claim(run) as attempt:
        run.attempt(1).write_environment({"versions": {"torch": "2.9", "mamba-ssm": "2.3"}})
        attempt.folder.write_environment({"versions": {"torch": "2.9", "triton": "3.9"}})
        assert earlier_environments(run, attempt.folder) == (
            "attempt 1, to step 7: mamba-ssm 2.3 instead of none; triton none instead of 3.9"
        )
        run.attempt(1).write_environment({})  # of a version that kept none
        assert earlier_environments(run, attempt.folder) == ""


def test_nan_is_found_at_its_step_and_is_an_outcome(root):
    plan = plan_for(
        root, "train.optimiser.learning_rate=1e30", "train.schedule={name: constant, warmup: 0}"
    )
    with pytest.raises(Diverged) as caught:
        run_one(root, plan, plan.runs[0])
    assert caught.value.step == 2  # the first step leaves finite weights of absurd size
    end = root.run(plan.runs[0].hash).attempts()[-1].end()
    assert end["state"] == "FAILED"
    assert "step 2" in end["reason"]
    assert end["final"]


def test_an_evaluation_asked_for_later_uses_the_kept_weights(root):
    plan = plan_for(root)
    folder = run_one(root, plan, plan.runs[0])
    first = folder.evaluation(plan.evaluations[0])["metrics"]
    later = plan_for(root, "evaluate=[{perplexity: {tokens_per_document: 256, window: 32}}]")
    assert later.runs[0].hash == plan.runs[0].hash
    run_one(root, later, later.runs[0])
    second = folder.evaluation(later.evaluations[0])["metrics"]
    assert second["val/bits_per_byte"] != first["val/bits_per_byte"]
    again = plan_for(root, "evaluate=[{perplexity: {tokens_per_document: 256, documents: 17}}]")
    run_one(root, again, again.runs[0])
    assert folder.evaluation(again.evaluations[0])["metrics"] == pytest.approx(first)


def test_a_checkpoint_holds_tensors_and_json_alone(root):
    plan = plan_for(root)
    folder = run_one(root, plan, plan.runs[0])
    _, _, path = folder.latest_checkpoint()
    assert {p.name for p in path.iterdir()} == {
        "model.safetensors",
        "optimiser.safetensors",
        "progress.json",
    }
    assert json.loads((path / "progress.json").read_text())["step"] == 25


def test_bfloat16_trains_with_float32_weights(root):
    plan = plan_for(root, "train.precision=bfloat16")
    folder = run_one(root, plan, plan.runs[0])
    curve = losses(folder)
    assert curve[-1][1] < curve[0][1]
    assert {t.dtype for t in weights(folder)[1].values()} == {torch.float32}


def test_code_that_was_changed_after_planning_is_refused(root):
    from dataclasses import replace

    plan = plan_for(root)
    run = replace(plan.runs[0], spec=replace(plan.runs[0].spec, code="0" * 16))
    with pytest.raises(ValueError, match="submit the experiment again"):
        run_one(root, plan, replace(run, hash=run.spec.hash))


def test_decay_pulls_on_what_is_declared_and_on_nothing_else(root):
    plan = plan_for(root)
    model = build_model(plan.arms[1].model, seed=0)
    declared = model.declared_parameters()
    optimiser = make_optimiser(model, declared, OptimiserSpec(weight_decay=0.1))
    names = {id(p): name for name, p in model.named_parameters()}
    decayed = {
        names[id(p)]: group["weight_decay"]
        for group in optimiser.param_groups
        for p in group["params"]
    }
    assert decayed.keys() == declared.keys()
    for name, decay in decayed.items():
        assert decay == (0.1 if declared[name].decay else 0.0)
        if "norm" in name or name.endswith(("bias", "log_rate", "A_log")):
            assert decay == 0.0, name
    assert decayed["embedding.weight"] == 0.1


def test_counts_on_the_meta_device_are_those_of_the_model(root):
    for arm in plan_for(root).arms:
        model = build_model(arm.model, seed=0)
        counted = count_model(arm.model, 64)
        assert counted.parameters == sum(p.numel() for p in model.parameters())
        mixers = sum(p.numel() for layer in model.layers for p in layer.mixer.parameters())
        assert counted.mixer_parameters == mixers


@pytest.mark.parametrize("name", ["cosine", "wsd", "constant"])
def test_a_schedule_warms_up_and_ends_where_it_says(name):
    spec = ScheduleSpec(name=name, warmup=0.1, decay=0.2, final=0.1)
    shares = [learning_rate_share(step, 1000, spec) for step in range(1000)]
    assert 0 < shares[0] < 0.02
    assert shares[100] == pytest.approx(1.0, abs=1e-4)
    assert max(shares) == pytest.approx(1.0)
    end = {"cosine": 0.1, "wsd": 0.1, "constant": 1.0}[name]
    assert shares[-1] == pytest.approx(end, abs=0.01)
    if name == "wsd":
        assert set(shares[100:800]) == {1.0}
        assert shares[900] == pytest.approx(0.55, abs=0.01)


def test_shards_that_were_changed_after_planning_are_refused(root, tmp_path):
    plan = plan_for(root)
    shared = (root.path / "data").resolve()
    (root.path / "data").unlink()
    shutil.copytree(shared, root.path / "data")
    (folder,) = (root.path / "data").glob("sotu-*")
    shard = folder / "train.tokens"
    shard.write_bytes(shard.read_bytes()[2:] + b"\0\0")  # another text of the same length
    with pytest.raises(ValueError, match="prepare the data again"):
        run_one(root, plan, plan.runs[0])


def test_a_block_that_draws_while_training_draws_alike_after_a_resumption(root, monkeypatch):
    from blocks.gru import GRU

    real = GRU.forward

    def with_dropout(self, x, state=None, *, reset=None):
        y, after = real(self, x, state, reset=reset)
        return torch.nn.functional.dropout(y, 0.1, self.training), after

    monkeypatch.setattr(GRU, "forward", with_dropout)
    plan = plan_for(root, "arms.with=gru")
    other = type(root)(root.path.parent / "undisturbed").make()
    (other.path / "data").symlink_to(root.path / "data")
    expected = run_one(other, plan, plan.runs[1])
    torch.manual_seed(99)
    with pytest.raises(Stopped):
        run_one(root, plan, plan.runs[1], before=stop_after(7))
    assert losses(run_one(root, plan, plan.runs[1])) == losses(expected)
