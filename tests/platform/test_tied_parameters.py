"""A block whose parameters share memory: tied ones are saved once, overlapping ones refused."""

import pytest
import torch
from safetensors.torch import load_file

from arch_search.checkpoint import load_weights
from arch_search.errors import Stopped
from arch_search.model import build_model
from arch_search.storage import Root

from .conftest import plan_for, run_one, stop_after, weights_of

BLOCKS = """
import torch
from torch import nn

from blocks.base import Cost
from blocks.gru import GRU
from blocks.initialisation import Normal, Parameter


class Tied(GRU):
    def __init__(self, options, *, width, depth):
        super().__init__(options, width=width, depth=depth)
        self.scale = nn.Parameter(torch.empty(width))
        self.again = self.scale
        both = torch.empty(2 * width)
        self.left, self.right = nn.Parameter(both[:width]), nn.Parameter(both[width:])

    def forward(self, x, state=None, *, reset=None):
        y, state = super().forward(x * self.scale + self.left, state, reset=reset)
        return y * self.again + self.right, state

    def declared_parameters(self):
        own = Parameter(Normal(0.5), decay=True)
        return super().declared_parameters() | dict.fromkeys(("scale", "left", "right"), own)

    def cost(self, length):
        whole = super().cost(length)
        return Cost(
            parameters=whole.parameters + 3 * self.width,
            state_elements=whole.state_elements,
            forward_flops_per_token=whole.forward_flops_per_token,
        )


class Overlapping(Tied):
    def __init__(self, options, *, width, depth):
        super().__init__(options, width=width, depth=depth)
        self.right = nn.Parameter(self.left.detach())
"""
SHORT = (
    "model.pattern=gdn attn",
    "train.tokens=2560",
    "log={every: 5, checkpoint_every: 5, validate_every: 10, validation_tokens: 500}",
    "evaluate=[perplexity]",
)


@pytest.fixture
def blocks(tmp_path, monkeypatch):
    (tmp_path / "tied_blocks.py").write_text(BLOCKS)
    monkeypatch.syspath_prepend(str(tmp_path))


def _plan(root, block):
    return plan_for(root, f"arms.with=['tied_blocks:{block}']", *SHORT)


def test_a_tied_parameter_is_saved_once_and_resumed_as_one(root, blocks, tmp_path):
    plan = _plan(root, "Tied")
    run = plan.runs[-1]
    whole = run_one(root, plan, run)
    _, _, folder = whole.latest_checkpoint()
    saved = load_file(folder / "model.safetensors")
    names = {name.rpartition(".")[2] for name in saved}
    assert {"scale", "left", "right"} <= names
    assert "again" not in names

    model = build_model(run.spec.model, seed=99)
    load_weights(folder, model)
    mixer = next(layer.mixer for layer in model.each_layer() if hasattr(layer.mixer, "again"))
    assert mixer.again is mixer.scale
    for name, value in model.named_parameters():
        assert torch.equal(value, saved[name]), name

    other = Root(tmp_path / "other").make()
    (other.path / "data").symlink_to(root.path / "data")
    with pytest.raises(Stopped):
        run_one(other, plan, run, before=stop_after(7))
    assert weights_of(run_one(other, plan, run)) == weights_of(whole)


def test_parameters_that_overlap_are_refused_when_the_plan_is_made(root, blocks):
    with pytest.raises(ValueError, match=r"mixer.left and layers.0.mixer.right share memory") as no:
        _plan(root, "Overlapping")
    assert "\n" not in str(no.value)
