"""A step's gradients as a graph: it gives what the plain step gives, or it is not used.

Without a GPU a recorder stands in for CUDA's: it runs what it recorded again, on the same tensors.
"""

import pytest
import torch

from arch_search.journal import read_curve, read_journal
from arch_search.micro_batches import accumulate_gradients
from arch_search.model import build_model
from arch_search.step_graphs import CudaRecorder, StepGraphs

from .conftest import plan_for, run_one

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Graphed:
    """A model that trains by graphs, and what was heard of them."""

    def __init__(self, model, record=None, device="cpu", step=None):
        self.model, self.heard, self.calls, self.size = model, [], [], 0
        self.optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def plain(rows, resets, parts):
            self.calls.append(rows.shape)
            return bare(rows, resets, parts)

        def bare(rows, resets, parts):
            if step is not None:
                step()
            return accumulate_gradients(model, rows, self.size, "float32", resets)

        self.gradients = StepGraphs(
            model, plain=plain, bare=bare, size=lambda: self.size, told=self.heard.append,
            record=record,
        )  # fmt: skip

    def train(self, batches):
        losses = []
        for rows, resets in batches:
            losses.append(self.gradients(rows, resets, 1))
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  # in the graph's memory
            self.optimiser.step()
            self.optimiser.zero_grad(set_to_none=True)
        return [float(loss) for loss in losses]


def again(model):
    """A recorder that runs the step again, into the memory of the first time."""

    def record(step):
        loss = step()
        kept = [(p, p.grad) for p in model.parameters()]

        def replay():
            for p, _ in kept:
                p.grad = None
            loss.copy_(step())
            for p, gradient in kept:
                gradient.copy_(p.grad)

        return loss, replay

    return record


def small_model(root):
    run = plan_for(root).runs[0]
    return build_model(run.spec.model, seed=run.spec.init_seed, device=torch.device("cpu"))


def batches(device="cpu"):
    """Three lengths, as under a curriculum, one of them with documents; each shape comes again."""
    generator, made = torch.Generator().manual_seed(0), []
    for length, documents in [(8, False), (16, False), (16, True)] * 4:
        rows = torch.randint(0, 257, (4, length + 1), generator=generator)
        resets = torch.rand(4, length, generator=generator) < 0.2 if documents else None
        made.append((rows.to(device), None if resets is None else resets.to(device)))
    return made


def plain_losses(model, made):
    optimiser, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for rows, resets in made:
        losses.append(float(accumulate_gradients(model, rows, 0, "float32", resets)))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    return losses


def test_each_shape_is_recorded_once_and_trains_as_the_plain_step_does(root):
    model = small_model(root)
    graphed = Graphed(model, again(model))
    assert graphed.train(batches()) == plain_losses(small_model(root), batches())
    assert len(graphed.calls) == 3
    assert graphed.gradients.used() == "all"
    assert [line.split(":")[0] for line in graphed.heard] == [
        "steps of 4x9 tokens go by a graph",
        "steps of 4x17 tokens go by a graph",
        "steps of 4x17 tokens go by a graph",
    ]


def test_a_smaller_micro_batch_is_recorded_anew(root):
    model = small_model(root)
    graphed = Graphed(model, again(model))
    made = batches()[:1] * 4
    first = graphed.train(made[:2])
    graphed.size = 3
    assert first + graphed.train(made[2:]) == pytest.approx(plain_losses(small_model(root), made))
    assert len(graphed.calls) == 2


def test_what_a_step_counts_is_counted_once_where_it_is_recorded(root):
    model = small_model(root)
    model.register_buffer("passes", torch.zeros(()))
    graphed = Graphed(model, again(model), step=lambda: model.passes.add_(1))
    graphed.train(batches())
    assert (len(graphed.calls), model.passes) == (3, 12)


def test_what_cannot_be_recorded_stays_plain(root):
    model = small_model(root)

    def record(step):
        step()
        for p in model.parameters():
            p.grad = None  # as whatever a broken recording leaves
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    graphed = Graphed(model, record)
    assert graphed.train(batches()) == plain_losses(small_model(root), batches())
    assert len(graphed.calls) == 12
    assert graphed.gradients.used() == "none"
    assert graphed.heard[0] == (
        "steps of 4x9 tokens are not recorded as a graph: "
        "operation not permitted when stream is capturing"
    )


@pytest.mark.parametrize("wrong", ["a gradient", "the loss", "a gradient's absence"])
def test_a_graph_that_differs_is_not_used(root, wrong):
    model = small_model(root)
    right = again(model)

    def record(step):
        loss, replay = right(step)
        victim = model.layers[0].mlp.input.weight
        gradient = victim.grad
        if wrong == "a gradient's absence":
            victim.grad = None

        def off():
            replay()
            (gradient if wrong == "a gradient" else loss).mul_(1.01)

        return loss, off

    graphed = Graphed(model, record)
    assert graphed.train(batches()) == plain_losses(small_model(root), batches())
    assert len(graphed.calls) == 12
    assert len(graphed.heard) == 3
    assert all("stay plain" in line for line in graphed.heard)


@pytest.mark.gpu
@needs_gpu
def test_cuda_graphs_train_as_the_plain_step_does(root):
    model = small_model(root).cuda()
    graphed = Graphed(model)
    found = graphed.train(batches("cuda"))
    assert found == pytest.approx(plain_losses(small_model(root).cuda(), batches("cuda")), rel=1e-5)
    assert len(graphed.calls) == 3, graphed.heard


@pytest.mark.gpu
@needs_gpu
def test_a_step_that_reads_a_value_stays_plain_and_on_its_stream(root):
    model = small_model(root).cuda()
    graphed = Graphed(model, CudaRecorder(), step=lambda: float(model.norm.weight.sum()))
    before = torch.cuda.current_stream()
    found = graphed.train(batches("cuda"))
    assert torch.cuda.current_stream() == before
    assert found == pytest.approx(plain_losses(small_model(root).cuda(), batches("cuda")), rel=1e-5)
    assert len(graphed.calls) == 12


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("kind", ["gated_deltanet", "m2rnn", "gru", "mamba2"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_run_by_graphs_has_the_losses_of_a_plain_one(root, kind, compiled):
    curves = []
    for graphs in (False, True):
        plan = plan_for(
            root, f"model.blocks.gdn={{kind: {kind}}}", "arms.replace=attn",
            "train.precision=bfloat16", f"name=graphs_{graphs}",
        )  # fmt: skip
        folder = run_one(root, plan, plan.runs[0], gpus=1, compile=compiled, graphs=graphs)
        curves.append(
            [p.values["train/loss"] for p in read_curve(folder) if "train/loss" in p.values]
        )
        told = [r.text for a in folder.attempts() for r in read_journal(a.journal)[0] if r.text]
        used = folder.result()["environment"].get("graphs")
        assert used == ("all" if graphs else None), told
        folder.path.rename(folder.path.with_name(f"{folder.path.name}-{graphs}"))
    assert curves[0] == pytest.approx(curves[1], rel=1e-3)
