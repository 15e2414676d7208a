import pytest

from arch_search.errors import UsageError
from arch_search.planning import make_plan

from .conftest import plan_for


def residue(plan, name="parameters"):
    base = plan.arms[0].counts[name]
    return {arm.name: arm.counts[name] / base - 1 for arm in plan.arms[1:]}


WITH = "arms.with=[m2rnn, gru, attention]"
FACTORIAL = ("arms.cells=[]", "arms.count=[1, 2]", "arms.position=[first, spread]")


def test_parameters_are_held_by_the_width_of_the_replaced_layers_mlp(root):
    hold = "hold={parameters: 0.5%, by: replaced.mlp.width}"
    plan = plan_for(root, WITH, *FACTORIAL, hold, "model.width=64", "model.mlp.width=128")
    free = plan_for(root, WITH, *FACTORIAL, "model.width=64", "model.mlp.width=128")
    assert max(map(abs, residue(free).values())) > 0.01  # or holding would show nothing
    assert max(map(abs, residue(plan).values())) <= 0.005
    for arm in plan.arms[1:]:
        widths = [layer.mlp_width for layer in arm.model.layers]
        changed = [i for i, name in enumerate(widths) if name != 128]
        kinds = {arm.model.layers[i].kind for i in changed}
        assert kinds <= {arm.model.layers[0].kind, arm.model.layers[1].kind}
        assert len(changed) <= arm.factors["count"]
        assert arm.held["replaced.mlp.width"] in widths


def test_state_is_held_by_an_option_of_the_block(root):
    hold = "hold={state: 2%, by: replaced.key_dim}"
    plan = plan_for(root, hold, "model.width=64")
    assert abs(residue(plan, "state_elements")["m2rnn-1-first"]) <= 0.02
    assert plan.arms[1].model.layers[0].options["key_dim"] == plan.arms[1].held["replaced.key_dim"]


def test_two_quantities_by_two_knobs_are_held_together(root):
    hold = "hold=[{state: 3%, by: replaced.key_dim}, {parameters: 1%, by: replaced.mlp.width}]"
    plan = plan_for(root, hold, "model.width=64", "model.mlp.width=128")
    assert abs(residue(plan, "state_elements")["m2rnn-1-first"]) <= 0.03
    assert abs(residue(plan)["m2rnn-1-first"]) <= 0.01


@pytest.mark.parametrize(
    "overrides, says",
    [
        (
            ["hold={parameters: 0.5%, by: replaced.mlp.widht}"],
            "known: replaced.mlp.width|no whole-number",
        ),
        (["hold={parameters: 0.5%, by: depth}"], "unknown knob 'depth'"),
        (["hold={by: mlp.width}"], "one quantity"),
        (["hold={parameters: 1%, state: 1%, by: mlp.width}"], "one quantity"),
        (["hold={parameters: 0.5%, by: replaced.key_dmi}"], "did you mean 'key_dim'"),
        (["hold={state: 0.001%, by: replaced.key_dim}"], "stays .* off"),
        (
            ["hold={state: 1%, by: replaced.key_dim}", "arms.vary={key_dim: [16, 32]}", *FACTORIAL],
            "is what the arms vary",
        ),
        (
            ["hold=[{state: 1%, by: mlp.width}, {parameters: 1%, by: mlp.width}]"],
            "cannot keep two quantities",
        ),
    ],
)
def test_what_cannot_be_held_is_said(root, overrides, says):
    with pytest.raises(UsageError, match=says):
        plan_for(root, *overrides)


def test_written_out_arms_are_held_where_they_differ_from_the_baseline(tmp_path, root):
    path = tmp_path / "written.yaml"
    path.write_text(
        """
name: written
model: {pattern: "gdn*2 attn", width: 64, mlp: {width: 128}}
data: {corpus: sotu, sequence_length: 64, batch: 4}
train: {tokens: 6400}
baseline: {}
arms: {explicit: {one: {model: {pattern: "gdn gru attn"}}, same: {train: {tokens: 12800}}}}
hold: {parameters: 0.5%, by: replaced.mlp.width}
seeds: 2
"""
    )
    base, one, same = make_plan(path, root).arms
    assert abs(one.counts["parameters"] / base.counts["parameters"] - 1) <= 0.005
    widths = [layer.mlp_width for layer in one.model.layers]
    assert widths[0] == widths[2] == 128
    assert widths[1] == one.held["replaced.mlp.width"] < 128
    assert same.held == {}
    assert same.model == base.model
