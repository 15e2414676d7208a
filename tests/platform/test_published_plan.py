"""The published M²RNN configurations: counted as published, their confounds named, held at size."""

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from arch_search.cli import make_app
from arch_search.errors import UsageError
from arch_search.planned_data import require_data
from arch_search.planning import make_plan
from arch_search.storage import Root

PUBLISHED = Path(__file__).parents[2] / "experiments" / "published_ablation.yaml"

SAID = [
    "m2rnn among gated_deltanet and mamba2 layers: its count and position move together: "
    "count 1 only with first; count 3 only with before_attention",
    "1,360 in rnn and gru, 86,016 in m2rnn, 262,144 in gated_deltanet, 262,656 in mamba2",
    "positions are encoded (RoPE) in transformer only",
    "weight decay pulls on the recurrent weight W in m2rnn but not in rnn and gru",
    "rnn and gru begin with almost no recurrence",
    "rnn and gru start without a slow gate",
    "+17 % in gru",
    "embeddings are tied in all arms; untied they would change each model by +102,760,448",
    "one seed",
    "one learning rate, 0.0003",
]


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return make_plan(PUBLISHED, Root(tmp_path_factory.mktemp("published")).make())


@pytest.mark.parametrize("text", SAID)
def test_the_plan_says_unasked_what_is_confounded(published, text):
    assert any(text in finding.text for finding in published.findings)


def test_the_parameters_are_those_published(published):
    """m2rnn.md §1.5; in millions, tied."""
    counts = {arm.name: arm.counts["parameters"] / 1e6 for arm in published.arms}
    assert counts == pytest.approx(
        {
            "baseline": 406.64, "hybrid_m2rnn": 410.19, "hybrid_mamba2": 407.61,
            "hybrid_gdn_m2rnn_1": 406.81, "hybrid_gdn_m2rnn_3": 407.15,
            "hybrid_mamba2_m2rnn_1": 407.73, "hybrid_mamba2_m2rnn_3": 407.98,
            "gdn": 406.68, "mamba2": 407.78, "m2rnn": 410.74, "rnn": 406.67, "gru": 474.56,
            "transformer": 406.37,
        },
        abs=0.005,
    )  # fmt: skip
    assert all(arm.counts["steps"] == 25_000 for arm in published.arms)


def test_without_its_corpus_it_can_be_read_but_not_run(published, tmp_path):
    with pytest.raises(UsageError, match="nemotron-cc-hq is not prepared"):
        require_data(published)
    environment = {"ARCH_SEARCH_ROOT": str(tmp_path)}
    arguments = ["submit", str(PUBLISHED)]
    outcome = CliRunner().invoke(make_app(arguments), arguments, env=environment)
    assert isinstance(outcome.exception, UsageError)
    assert not list((tmp_path / "runs").iterdir())


def held(tmp_path, replacement: str, hold: dict[str, str]):
    """The published hybrid with every recurrent layer replaced, one quantity held."""
    file = yaml.safe_load(PUBLISHED.read_text())
    file["arms"] = {"replace": "gdn", "with": replacement, "count": 21, "position": "first"}
    file["hold"] = hold
    path = tmp_path / "held.yaml"
    path.write_text(yaml.safe_dump(file))
    return make_plan(path, Root(tmp_path).make())


@pytest.mark.parametrize("block", ["m2rnn", "mamba2", "rnn", "gru", "attn"])
def test_parameters_are_held_by_the_mlp_at_the_published_size(tmp_path, block):
    plan = held(tmp_path, block, {"parameters": "0.5%", "by": "replaced.mlp.width"})
    base, arm = plan.arms
    assert abs(arm.counts["parameters"] / base.counts["parameters"] - 1) <= 0.005
    widths = {layer.mlp_width for i, layer in enumerate(arm.model.layers) if i in arm.replaced}
    assert all(width % 16 == 0 for width in widths)
    if block == "gru":  # the only one that is far off unless it is held
        assert widths != {2752}


def test_state_is_held_by_key_dim_at_the_published_size(tmp_path):
    plan = held(tmp_path, "m2rnn", {"state": "2%", "by": "replaced.key_dim"})
    arm = plan.arms[1]
    assert {layer.options["key_dim"] for i, layer in enumerate(arm.model.layers)
            if i in arm.replaced} == {192}  # fmt: skip
    sentence = next(f.text for f in plan.findings if f.subject == "state")
    assert re.search("258,048 in m2rnn, 262,144 in gated_deltanet", sentence)
    assert arm.held == {"replaced.key_dim": 192}
