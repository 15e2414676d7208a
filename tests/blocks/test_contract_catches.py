"""The contract on a whole block from the documentation, and on broken ones: each clause catches."""

import re
import sys
from pathlib import Path

import pytest
import torch

from blocks import registry
from blocks.contract import Case, clauses
from blocks.registry import block_class

GUIDE = Path(__file__).parents[2] / "docs" / "adding-a-block.md"
CLAUSES = dict(clauses())

BROKEN = """
import torch
from leaky_example import LeakyAverage
from blocks.initialisation import Constant, Parameter, Start


class ForgetsToDeclare(LeakyAverage):
    def declared_parameters(self):
        declared = super().declared_parameters()
        del declared["bias"]
        return declared


class Misstated(Constant):
    def moments(self, shape):
        return 1.0, 0.5


class StartsOtherwise(LeakyAverage):
    def declared_parameters(self):
        return super().declared_parameters() | {"bias": Parameter(Misstated(1.0), decay=False)}


class StartsAtNaN(LeakyAverage):
    def declared_parameters(self):
        nan = Parameter(Constant(float("nan")), decay=False)
        return super().declared_parameters() | {"bias": nan}


class NeverSettles(LeakyAverage):
    @classmethod
    def complete(cls, options, *, width):
        return cls.Options(size=2 * options.size)


class Peeks(LeakyAverage):
    def forward(self, x, state=None, *, reset=None):
        y, state = super().forward(x, state, reset=reset)
        return y + 0.01 * x.mean(dim=1, keepdim=True), state


class IgnoresItsInput(LeakyAverage):
    def forward(self, x, state=None, *, reset=None):
        late = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)
        return super().forward(late, state, reset=reset)


class CarriesTheWrongState(LeakyAverage):
    def forward(self, x, state=None, *, reset=None):
        y, after = super().forward(x, state, reset=reset)
        return y, {"state": 0.99 * after["state"]}


class RoundsToFloat32(LeakyAverage):
    def forward(self, x, state=None, *, reset=None):
        y, after = super().forward(x, state, reset=reset)
        return (y if x.shape[1] > 1 else y.float().to(y.dtype)), after


class CutsTheGradient(LeakyAverage):
    def forward(self, x, state=None, *, reset=None):
        if state is not None:
            state = {"state": state["state"].detach()}
        return super().forward(x, state, reset=reset)


class LeavesAParameterOut(LeakyAverage):
    def forward(self, x, state=None, *, reset=None):
        y, after = super().forward(x, state, reset=reset)
        return y.detach() + 0 * x, after


class IgnoresResets(LeakyAverage):
    def forward(self, x, state=None, *, reset=None):
        return super().forward(x, state)


class MixesTheBatch(LeakyAverage):
    def forward(self, x, state=None, *, reset=None):
        return super().forward(x - x.mean(dim=0, keepdim=True), state, reset=reset)


class LosesBfloat16(LeakyAverage):
    def forward(self, x, state=None, *, reset=None):
        y, after = super().forward(x, state, reset=reset)
        return (y + 1000) - 1000, after


def miscounts(name, factor):
    class Miscounts(LeakyAverage):
        def cost(self, length):
            import dataclasses

            cost = super().cost(length)
            return dataclasses.replace(cost, **{name: factor * getattr(cost, name)})

    return Miscounts


MiscountsParameters = miscounts("parameters", 2)
MiscountsState = miscounts("state_elements", 2)
OvercountsFlops = miscounts("forward_flops_per_token", 2)
UndercountsFlops = miscounts("forward_flops_per_token", 0.5)
"""

CAUGHT = [
    ("NeverSettles", "options"),
    ("ForgetsToDeclare", "start"),
    ("StartsOtherwise", "start"),
    ("StartsAtNaN", "start"),
    ("MiscountsParameters", "counts"),
    ("MiscountsState", "counts"),
    ("OvercountsFlops", "counts"),
    ("UndercountsFlops", "counts"),
    ("Peeks", "causal"),
    ("IgnoresItsInput", "causal"),
    ("CarriesTheWrongState", "pieces in float32"),
    ("RoundsToFloat32", "pieces in float64"),
    ("CutsTheGradient", "gradients"),
    ("LeavesAParameterOut", "gradients"),
    ("IgnoresResets", "reset"),
    ("MixesTheBatch", "batch"),
    ("LosesBfloat16", "autocast"),
]


def example() -> str:
    """The block in the guide."""
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)
    return code


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    (tmp_path / "leaky_example.py").write_text(example())
    (tmp_path / "leaky_broken.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("leaky_example", "leaky_broken"):
        sys.modules.pop(name, None)


def test_the_guides_block_takes_under_60_lines():
    assert len(example().splitlines()) < 60


@pytest.mark.parametrize("clause", CLAUSES)
def test_the_guides_block_holds_to_the_contract(clause):
    torch.manual_seed(0)
    CLAUSES[clause](Case(kind="leaky_example:LeakyAverage", options={"size": 5}))


@pytest.mark.parametrize("name, clause", CAUGHT)
def test_a_broken_block_is_caught(name, clause):
    torch.manual_seed(0)
    with pytest.raises(AssertionError):
        CLAUSES[clause](Case(kind=f"leaky_broken:{name}", options={"size": 5}))


def test_every_clause_has_something_that_it_catches():
    assert {clause for _, clause in CAUGHT} == set(CLAUSES)


def test_an_entry_point_registers_a_block(tmp_path, monkeypatch):
    info = tmp_path / "installed" / "leaky-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: leaky\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[arch_search.blocks]\nleaky = leaky_example:LeakyAverage\n"
    )
    monkeypatch.syspath_prepend(info.parent)
    registry._announced.cache_clear()
    assert block_class("leaky").__name__ == "LeakyAverage"
    registry._announced.cache_clear()


def test_what_is_no_block_is_refused():
    with pytest.raises(ValueError, match="expected a SequenceMixer subclass"):
        block_class("leaky_example:Cost")
