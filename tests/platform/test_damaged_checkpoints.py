"""A flipped bit in a checkpoint is found, and the run goes on from an older one to the same end."""

import json
import shutil

import pytest
import torch

from arch_search.attempt import Attempt
from arch_search.errors import Stopped
from arch_search.integrity import damage, read_progress
from arch_search.journal import read_journal
from arch_search.trunk import Trunk

from .conftest import plan_for, run_one, stop_after
from .test_train import losses, weights


def flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[len(content) * 3 // 4] ^= 1
    file.write_bytes(content)


def events(attempt):
    return [r.text for r in read_journal(attempt.journal)[0] if r.kind == "event"]


@pytest.fixture(scope="module")
def undisturbed(prepared, tmp_path_factory):
    from arch_search.storage import Root

    own = Root(tmp_path_factory.mktemp("undisturbed")).make()
    plan = plan_for(prepared)
    (own.path / "data").symlink_to(prepared.path / "data")
    return plan, run_one(own, plan, plan.runs[0])


@pytest.fixture
def stopped(root, undisturbed):
    """A run that was stopped at step 13, with checkpoints of steps 10 and 13."""
    plan, _ = undisturbed
    with pytest.raises(Stopped):
        run_one(root, plan, plan.runs[0], before=stop_after(13))
    folder = root.run(plan.runs[0].hash)
    assert [step for step, _ in folder.attempt(1).checkpoints()] == [10, 13]
    return folder


def test_an_older_checkpoint_takes_over_and_the_end_is_the_same(stopped, root, undisturbed):
    plan, expected = undisturbed
    last = stopped.latest_checkpoint()[2]
    for name in ("optimiser.safetensors", "progress.json", "model.safetensors"):
        assert damage(last) == ""
        whole = (last / name).read_bytes()
        flip_a_bit(last / name)
        assert name in damage(last)
        if name != "model.safetensors":
            (last / name).write_bytes(whole)
    run_one(root, plan, plan.runs[0])
    said = events(stopped.attempt(2))
    assert len(said) == 1
    assert said[0].startswith("the checkpoint of step 13 is damaged (model.safetensors")
    assert said[0].endswith("goes on from step 10")
    assert stopped.attempt(2).lease()["resumed_from"] == {"attempt": 1, "step": 10}
    assert losses(stopped) == losses(expected)
    (_, mine), (_, theirs) = weights(stopped), weights(expected)
    assert all(torch.equal(mine[key], theirs[key]) for key in theirs)
    assert last.with_name("00000013.damaged-2").is_dir()  # for whoever looks after the disk


def test_with_every_checkpoint_damaged_it_begins_anew(stopped, root, undisturbed):
    plan, expected = undisturbed
    for _, folder in stopped.attempt(1).checkpoints():
        (folder / "model.safetensors").write_bytes(b"")
    run_one(root, plan, plan.runs[0])
    assert [text.rpartition(": ")[2] for text in events(stopped.attempt(2))] == [
        "goes on from the start"
    ] * 2
    assert losses(stopped) == losses(expected)


def test_checkpoints_of_earlier_versions_are_taken_as_they_are(stopped, root):
    folder = stopped.latest_checkpoint()[2]
    (folder / "progress.json").write_text(json.dumps(read_progress(folder)))
    flip_a_bit(folder / "optimiser.safetensors")
    assert damage(folder) == ""
    assert Attempt.claim(stopped).latest_checkpoint() == (13, folder)


def test_a_damaged_checkpoint_of_a_trunk_is_passed_over(stopped, tmp_path, root):
    plan = plan_for(root, "train.schedule={name: wsd, decay: 0.2}")
    trunk = Trunk(tmp_path, plan.runs[0].spec)
    for step, source in stopped.attempt(1).checkpoints():
        trunk.keep(step, lambda made, s=source: shutil.copytree(s, made, dirs_exist_ok=True))
    assert trunk.latest()[0] == 13
    flip_a_bit(trunk.latest()[1] / "model.safetensors")
    assert trunk.latest()[0] == 10
