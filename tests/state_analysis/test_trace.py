"""Statistics of states against plain computations, and collapse on hand-made curves."""

import math

import numpy as np
import pytest
import torch

from arch_search.model import next_token_loss
from arch_search.state_analysis.collapse import find_collapse
from arch_search.state_analysis.statistics import by_heads, histogram_rows, state_rows
from arch_search.state_analysis.trace import trace_states
from blocks.registry import BLOCKS

from .models import small_model, tokens


def test_collapse_is_found_where_it_begins():
    curve = {"first": [0, 10, 20, 30, 40, 50], "length": 60, "training_length": 30}
    flat = find_collapse(**curve, losses=[9.0, 2.0, 2.5, 2.5, 2.4, 4.9])
    assert (flat.found, flat.intact_to, flat.ratio) == (False, 60, pytest.approx(4.9 / 2.5))
    gone = find_collapse(**curve, losses=[9.0, 2.0, 2.5, 2.5, 5.1, 3.0])  # the first is left out
    assert (gone.position, gone.intact_to, gone.ratio) == (40, 40, pytest.approx(5.1 / 2.5))
    assert "from token 40 on" in gone.sentence()
    assert find_collapse(**curve, losses=[9, 2, 2.5, math.nan, 2, 2]).position == 30
    assert find_collapse(**curve, losses=[9, 2, 2.5, 3, 2, 2], factor=1.1).position == 30


def test_a_curve_that_ends_at_the_training_length_shows_no_collapse():
    with pytest.raises(ValueError, match="none lies beyond"):
        find_collapse([0, 10], [2, 2], length=20, training_length=20)
    with pytest.raises(ValueError, match="none lies within"):
        find_collapse([0, 10], [2, 2], length=20, training_length=5)


def test_statistics_of_a_state_made_by_hand():
    state = torch.zeros(1, 2, 8, 4, dtype=torch.float64)
    state[0, 0] = 1.0
    state[0, 0, 3] = 10.0  # one row of eight stands out
    state[0, 1, :, 2] = -1.0  # one column of four, and all rows alike
    first, second = state_rows(state)
    values = np.array([1.0] * 28 + [10.0] * 4)
    assert first["mean"] == pytest.approx(values.mean())
    assert first["variance"] == pytest.approx(values.var())
    assert first["norm"] == pytest.approx(np.sqrt((values**2).sum()))
    assert (first["outlier_rows"], first["largest_row"]) == (1, 3)
    assert first["largest_row_over_median"] == pytest.approx(10)
    assert first["outlier_columns"] == 0
    assert second["outlier_rows"] == 0
    assert second["largest_column"] == 2
    counts = histogram_rows({7: state})
    assert sum(row["count"] for row in counts if row["head"] == 0) == 32
    assert [row["count"] for row in counts if row["head"] == 0 and row["high"] == 10] == [4]


@pytest.mark.parametrize("kind", sorted(BLOCKS))
def test_a_trace_holds_what_the_model_did(kind):
    model, text = small_model(kind, kind), tokens(34)
    found = trace_states(model, text, piece=8, snapshots=(16,))
    assert found.losses["position"].tolist() == [8, 16, 24, 32, 33]
    with torch.no_grad():
        logits, states = model(text[:, :-1])
        loss = next_token_loss(logits, text[:, 1:], reduction="none").view(2, -1)
        assert found.losses["loss"][1] == pytest.approx(float(loss[:, 8:16].mean()), abs=1e-6)
        if kind == "attention":
            assert found.states.empty
            assert found.memory.empty
            return
        heads = by_heads(states[1]["state"])
    last = found.states.query("layer == 1 and position == 33 and part == 'state'")
    assert len(last) == heads.shape[1]
    norms = heads.square().sum(dim=(2, 3)).sqrt().mean(dim=0)
    assert last["norm"].tolist() == pytest.approx(norms.tolist())
    assert set(found.histogram["position"]) == {16, 33}
    taken = found.histogram.query("layer == 1 and position == 33 and part == 'state'")
    assert taken["count"].sum() == heads.numel()
    assert not found.drives.empty
    moved = found.memory.query("layer == 1")["influence"]
    assert (moved > 0).all()
    assert np.isfinite(moved).all()


def test_the_memory_of_the_first_token_is_the_product_of_the_gates():
    model, text = small_model("mamba2"), tokens(34, batch=1)
    found = trace_states(model, text, piece=8)
    mixer, norm = model.layers[0].mixer, model.layers[0].mixer_norm
    with torch.no_grad():
        gate = mixer.drives(norm(model.embedding(text[:, :-1]))).log_keep.exp()
    for end in (8, 33):
        expected = gate[0, 1:end].prod(dim=0)
        rows = found.memory.query("position == @end")
        assert rows["product"].tolist() == pytest.approx(expected.tolist(), rel=1e-9)
        assert set(rows["kind_of_product"]) == {"exact"}


def test_a_bound_on_the_memory_is_one():
    """The norm of the first write, carried on without any other, never exceeds the product."""
    model, text = small_model("gated_deltanet"), tokens(20, batch=1)
    mixer, x = model.layers[0].mixer, model.layers[0].mixer_norm(model.embedding(text))
    inputs = mixer._inputs(x, None, None)[0]
    alone = {**inputs, "value": inputs["value"].clone()}
    alone["value"][:, 1:] = 0
    _, first = mixer.scan({k: v[:, :1] for k, v in alone.items()}, None, None)
    _, last = mixer.scan(alone, None, None)
    kept = last["state"].norm(dim=(2, 3)) / first["state"].norm(dim=(2, 3))
    product = trace_states(model, text, piece=19).memory["product"]
    bound = mixer.drives(x).log_keep[0, 1:].sum(dim=0).exp()
    assert (kept[0] <= bound + 1e-12).all()
    assert product.notna().all()


def test_the_influence_is_that_of_the_first_token_alone():
    """A model that forgets at once is not moved by it; one that never forgets is."""
    model, text = small_model("m2rnn", convolution=0), tokens(40)
    gate = model.layers[0].mixer.forget.decay
    with torch.no_grad():
        gate.A_log.fill_(-30.0)  # f = 1: nothing is written, nothing forgotten
        model.layers[0].mixer.input.weight.mul_(3)
    slow = trace_states(model, text, piece=20).memory.groupby("position")["influence"].mean()
    with torch.no_grad():
        gate.A_log.fill_(5.0)  # f = 0
        model.layers[0].mixer.state_weight.weight.mul_(0.01)
    fast = trace_states(model, text, piece=20).memory.groupby("position")["influence"].mean()
    assert fast[39] < 1e-6 < 1e-3 < slow[39]


def test_a_layer_that_makes_its_state_at_the_first_token_is_looked_at_too(monkeypatch):
    """As layers of flash-linear-attention do; their inputs and keys are no memory."""
    model, text = small_model("mamba2"), tokens(25)
    known = trace_states(model, text, piece=8)
    mixer = model.layers[0].mixer
    forward = mixer.forward

    def renamed(x, state=None, *, reset=None):
        given = state and {"state": state["recurrent_state"], "convolution": state["conv_state.0"]}
        y, after = forward(x, given or None, reset=reset)
        keys = x if not state else torch.cat([state["attn_state.0"], x], dim=1)
        return y, {"recurrent_state": after["state"], "conv_state.0": after["convolution"],
                   "attn_state.0": keys, "seen": torch.tensor([x.shape[1]])}  # fmt: skip

    monkeypatch.setattr(mixer, "forward", renamed)
    monkeypatch.setattr(mixer, "initial_state", lambda batch, **where: {})
    monkeypatch.setattr(mixer, "drives", lambda x, state=None: None)
    found = trace_states(model, text, piece=8)
    assert set(found.states["part"]) == {"recurrent_state"}
    assert found.states["norm"].tolist() == pytest.approx(known.states["norm"].tolist())
    assert found.memory["influence"].tolist() == pytest.approx(known.memory["influence"].tolist())
    assert found.memory["product"].isna().all()
