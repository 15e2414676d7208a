"""A tiny forget-threshold grid from its file to its fit, for two blocks, and the task behind it."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from arch_search.cli import make_app
from arch_search.data import load_manifest, open_split
from arch_search.errors import UsageError
from arch_search.planning import make_plan
from arch_search.tasks.base import EvaluationContext
from arch_search.tasks.collapse import CollapseOptions, CollapseTask

from .conftest import run_one

FILE = Path(__file__).parents[2] / "experiments" / "forget_threshold.yaml"
TINY = (
    "data.corpus=sotu", "data.sequence_length=32", "data.batch=4", "arms.lengths=[16, 32]",
    "arms.vary.state.elements=[64, 128, 256]", "train.tokens=640", "model.width=32", "seeds=1",
    "resources.gpus=0",
    "model.mlp.width=32", "log.checkpoint_every=5",
    "evaluate=[{collapse: {tokens: 128, factor: 1.05, documents: 4}}, "
    "{passkey: {task: {digits: 1, begin: '', noise: 'x ', needle: '{p} ', end: '?'}, items: 4, "
    "multiples: [1, 2]}}]",
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "knob"),
    [
        ("mamba2", "state_dim"),
        ("gated_deltanet", "key_dim"),
        ("m2rnn", "key_dim"),
        ("gru", "heads"),
    ],
)
def test_any_block_can_be_put_through_the_file(root, kind, knob):
    plan = make_plan(
        FILE, root, [*TINY, f"arms.with=[{kind}]", f"arms.vary.state.by.{kind}={knob}"]
    )
    sizes = {arm.counts["state_elements"] for arm in plan.arms}
    assert len(plan.runs) == 6
    assert len(sizes) == 3
    assert not [f for f in plan.findings if f.level == "warning" and f.subject != "one seed"]


def test_from_file_to_fit(root, monkeypatch):
    monkeypatch.setenv("ARCH_SEARCH_ROOT", str(root.path))
    plan = make_plan(FILE, root, [*TINY, "arms.with=[mamba2, gdn]"])
    folder = root.experiment(plan.name)
    folder.path.mkdir(parents=True)
    folder.write_plan(plan)
    for run in plan.runs:
        run_one(root, plan, run)
    done = CliRunner().invoke(make_app(["thresholds"]), ["thresholds", plan.name, "--factor", "9",
                                                         "--json"])  # fmt: skip
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert len(found["grid"]) == 12
    assert {row["block"] for row in found["thresholds"]} == {"mamba2", "gated_deltanet"}
    assert {row["forget"] for row in found["thresholds"]} == {16}  # nothing gets nine times as bad
    assert {row["recall"] for row in found["thresholds"]} <= {0, 16, 32}
    lines = [fit for fit in found["fits"] if (fit["what"], fit["form"]) == ("forget", "linear")]
    assert [line["block"] for line in lines] == ["mamba2", "gated_deltanet"]
    for line in lines:
        assert line["coefficients"]["slope"]["value"] == pytest.approx(0, abs=1e-6)
        assert line["coefficients"]["intercept"]["value"] == pytest.approx(0.016)
    assert any("mamba2: published for Mamba-2: a slope of 5.172" in s for s in found["sentences"])
    drawn = (folder.report / "thresholds.svg").read_text()
    assert "gated_deltanet: loss beyond over within" in drawn
    assert (folder.report / "thresholds.png").read_bytes().startswith(b"\x89PNG")
    words = CliRunner().invoke(make_app(["thresholds"]), ["thresholds", plan.name, "--factor", "1"])
    assert words.exit_code == 0, words.output
    assert "forgets from" in words.output
    asked = ["thresholds", plan.name, "--passkey", "passkeys"]
    with pytest.raises(UsageError, match=r"of label 'passkeys'; labels: passkey\. Did you mean"):
        CliRunner().invoke(make_app(["thresholds"]), asked, catch_exceptions=False)


def test_collapse_is_that_of_the_losses(root):
    """A model whose loss jumps at a position is found there."""
    plan = make_plan(FILE, root, TINY)
    split = open_split(load_manifest(root.path, plan.arms[0].data.manifest), "val")
    context = EvaluationContext(
        split=split, sequence_length=16, device=torch.device("cpu"), precision="float32"
    )

    class Forgetful(torch.nn.Module):
        """Uniform to token 64, then sure of what does not come."""

        spec = SimpleNamespace(vocabulary=257)

        def features(self, tokens, states=None):
            seen = 0 if states is None else states
            at = torch.arange(seen, seen + tokens.shape[1])
            return at.expand(tokens.shape)[..., None], seen + tokens.shape[1]

        def logits(self, features):
            logits = torch.zeros(len(features), 257)
            logits[features[:, 0] >= 64, 256] = 30.0
            return logits

    options = CollapseOptions(tokens=128, documents=2)
    found = CollapseTask()(Forgetful(), context, options)
    assert found.metrics["collapse/found"] == 1
    assert found.metrics["collapse/intact_to"] == 64
    assert found.metrics["collapse/ratio"] == pytest.approx(30 / np.log(257), rel=0.01)
    with pytest.raises(UsageError, match="too few"):
        CollapseTask().check(split, 16, CollapseOptions(tokens=10**9))
    with pytest.raises(ValueError, match="twice as many"):
        CollapseTask().check(split, 16, CollapseOptions(tokens=20))
