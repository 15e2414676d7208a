"""Runs on a synthetic task: which batches they see, that they learn, and what is refused."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from arch_search.data import loader
from arch_search.errors import UsageError
from arch_search.micro_batches import accumulate_gradients, inputs_and_targets
from arch_search.model import IGNORED
from arch_search.planning import make_plan
from arch_search.spec import LATER, CurriculumSpec, DataSpec, content_hash
from arch_search.storage import Root
from arch_search.synthetic.registry import resolved_task
from arch_search.synthetic.stream import TaskStream, TaskStreamHash

from .conftest import run_one, weights_of

FILE = """
defaults: [task]
name: parity
model:
  pattern: gru
  width: 32
  mlp: {width: 32}
  tie_embeddings: false
  blocks: {gru: {kind: gru, head_dim: 32, heads: 1, convolution: 0, weight_std: 0.15, clip: none}}
baseline: {}
data:
  task: {state_tracking: {group: Z2}}
  sequence_length: 16
  batch: 32
  curriculum: {first: 4, steps: 60}
train: {tokens: 120K, optimiser: {learning_rate: 1e-2}}
seeds: 1
log: {every: 20, checkpoint_every: 100, validate_every: 100, validation_tokens: 1024}
evaluate: [{task: {items: 200}}]
"""


@pytest.fixture
def root(tmp_path):
    return Root(tmp_path / "root").make()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "parity.yaml"
    path.write_text(FILE)
    return path


def data_of(**more):
    given = {
        "corpus": "task", "tokenizer": "", "sequence_length": 32, "batch": 8,
        "task": resolved_task({"state_tracking": {"group": "S3"}}),
    }  # fmt: skip
    return DataSpec(**{**given, **more})


def test_a_batch_follows_from_the_seed_and_the_step():
    stream, again = (TaskStream(data_of(), seed=3) for _ in range(2))
    assert np.array_equal(stream.batch(7), again.batch(7))
    assert stream.batch(7).shape == (8, 2, 32)
    assert not np.array_equal(stream.batch(7), stream.batch(8))
    assert not np.array_equal(stream.batch(7), TaskStream(data_of(), seed=4).batch(7))
    doubled = TaskStream(data_of(batch=16), seed=3).batch(3)
    assert np.array_equal(doubled, np.concatenate([stream.batch(6), stream.batch(7)]))
    read = dict(loader(stream, first_step=5, last_step=9, workers=2))
    assert all(np.array_equal(read[step], stream.batch(step)) for step in range(5, 9))


def test_a_fixed_set_is_seen_whole_in_each_epoch_in_another_order():
    stream = TaskStream(data_of(items=24), seed=0)
    epochs = [np.concatenate([stream.indices(3 * e + s) for s in range(3)]) for e in range(3)]
    assert all(sorted(epoch) == list(range(24)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    first = stream.batch(0)
    place = int(np.flatnonzero(np.concatenate([stream.indices(s) for s in range(3, 6)])
                               == stream.indices(0)[0])[0])  # fmt: skip
    assert np.array_equal(stream.batch(3 + place // 8)[place % 8], first[0])


def test_rows_grow_by_doubling():
    curriculum = CurriculumSpec(first=4, steps=30)
    lengths = [curriculum.length(step, 32) for step in (0, 9, 10, 19, 20, 29, 30, 1000)]
    assert lengths == [4, 4, 8, 8, 16, 16, 32, 32]
    assert CurriculumSpec(first=4, steps=10).length(5, 4) == 4
    assert [CurriculumSpec(first=5, steps=3).length(s, 12) for s in range(4)] == [5, 5, 10, 12]
    stream = TaskStream(data_of(curriculum=curriculum), seed=1)
    assert stream.batch(12).shape == (8, 2, 8)
    assert np.array_equal(stream.batch(12), TaskStream(data_of(), seed=1).batch(12)[..., :8])


def test_hashes_of_a_stream():
    stream = TaskStream(data_of(items=16), seed=0)
    whole, resumed, other = TaskStreamHash(stream), TaskStreamHash(stream), TaskStreamHash(stream)
    for step in range(4):
        whole.update(step, stream.batch(step))
    for step in range(2):
        resumed.update(step, stream.batch(step))
    resumed = TaskStreamHash.from_state(stream, json.loads(json.dumps(resumed.state())))
    for step in (2, 3):
        resumed.update(step, stream.batch(step))
    assert resumed.state() == whole.state()
    for step, swapped in enumerate((1, 0, 3, 2)):
        other.update(step, stream.batch(swapped))
    assert other.tokens != whole.tokens
    assert other.text == whole.text  # the same items in another order
    changed = stream.batch(4)
    changed[0, 1, 0] += 1
    true, false = (TaskStreamHash.from_state(stream, whole.state()) for _ in range(2))
    true.update(4, stream.batch(4))
    false.update(4, changed)
    assert true.text != false.text
    with pytest.raises(ValueError, match="expects step 4 next"):
        whole.update(6, changed)


def test_the_loss_is_the_mean_over_what_is_asked_whatever_the_micro_batch():
    from .test_blocks_train import model_of

    stream = TaskStream(
        data_of(task=resolved_task({"mqar": {"vocabulary": 64, "pairs": 4}})), seed=0
    )
    batch = torch.from_numpy(stream.batch(0))
    inputs, targets = inputs_and_targets(batch)
    assert (targets != IGNORED).sum() == 8 * 4
    model = model_of("gated_deltanet")
    loss = accumulate_gradients(model, batch, 0, "float32")
    whole = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    logits = model(inputs)[0].flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED)
    torch.testing.assert_close(loss, expected)
    model.zero_grad()
    torch.testing.assert_close(accumulate_gradients(model, batch, 3, "float32"), loss)
    for now, before in zip(model.parameters(), whole, strict=False):
        torch.testing.assert_close(now.grad, before, rtol=1e-4, atol=1e-6)


def test_keys_that_came_later_leave_older_hashes_alone(root, file):
    [run] = make_plan(file, root).runs
    plain = replace(run.spec, data=replace(run.spec.data, task=None, curriculum=None))
    content = asdict(plain)
    for part, key, default in LATER:
        assert content[part].pop(key) == default
    assert {"task", "items", "curriculum"} <= {key for _, key, _ in LATER}
    assert plain.hash == content_hash(content)
    changed = [
        run.spec.hash,
        plain.hash,
        replace(plain, data=replace(plain.data, items=5)).hash,
        replace(run.spec, data=replace(run.spec.data, task={"state_tracking": {}})).hash,
    ]
    assert len(set(changed)) == 4


@pytest.mark.slow
def test_a_gru_learns_parity_and_a_run_goes_on_where_it_was_stopped(root, file, tmp_path):
    plan = make_plan(file, root)
    [run] = plan.runs
    folder = run_one(root, plan, run)
    evaluation = folder.evaluation(plan.evaluations[0])
    assert evaluation is not None
    assert evaluation["metrics"]["task/solved"] == 1
    result = folder.result()
    assert result is not None

    class Killed(Exception):  # noqa: N818
        pass

    def kill_late(attempt):
        log = attempt.log

        def logged(step, values):
            log(step, values)
            if step == 140:
                raise Killed

        attempt.log = logged

    other = Root(tmp_path / "other").make()
    with pytest.raises(Killed):
        run_one(other, plan, run, before=kill_late)
    again = run_one(other, plan, run)
    resumed = again.result()
    assert resumed is not None
    assert len(again.attempts()) == 2
    assert resumed["stream"] == result["stream"]
    assert weights_of(again) == weights_of(folder)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["data.corpus=sotu"], "a task are given; keep one"),
        (["data.reset=true"], "data.reset is for a corpus"),
        (["evaluate=[perplexity]", "primary.metric=val/bits_per_byte"], "asks about text"),
        (["evaluate=[passkey]", "primary.metric=passkey/strict_accuracy_1x"], "asks about text"),
        (["evaluate=[{task: {task: {mqar: {}}}}]"], "8192 tokens so"),
        (["evaluate=[{task: {task: {state_tracking: {grup: S3}}}}]"], "Did you mean 'group'"),
        (["data.task={programs: {}}", "data.sequence_length=32", "data.curriculum=null",
          "evaluate=[task, {passkey: {multiples: [1]}}]"], "passkey at 1x: 32 tokens have no room"),
        (["data.task={mqar: {pairs: 8}}"], "at least 32"),
        (["data.task={mqarr: {}}"], "Did you mean 'mqar'"),
        (["data.task=null"], "neither corpus nor task"),
        (["data.task=null", "data.corpus=sotu", "evaluate=[perplexity]",
          "primary.metric=val/bits_per_byte", "data.items=5"], "data.items is for a synth"),
        (["data.curriculum.first=0"], "curriculum.first"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_before_anything_runs(root, file, overrides, said):
    with pytest.raises(UsageError, match=said):
        make_plan(file, root, overrides)
