"""Scores of synthetic tasks: by hand, and the same whatever a row is computed with."""

from dataclasses import asdict

import numpy as np
import pytest
import torch

import arch_search.tasks.synthetic as synthetic
from arch_search.data.tokenizers.byte_level import BYTES
from arch_search.errors import UsageError
from arch_search.model import IGNORED, LanguageModel, build_model
from arch_search.spec import DataSpec, LayerSpec, ModelSpec
from arch_search.synthetic.base import Examples, examples
from arch_search.synthetic.registry import generator, read_task, resolved_task
from arch_search.synthetic.text import TextItem
from arch_search.tasks.base import EvaluationContext
from arch_search.tasks.chance import chance_of_accuracy
from arch_search.tasks.registry import read_options, resolve, task
from arch_search.tasks.synthetic import (
    Scores,
    balanced_accuracy,
    cumulative_sequence_accuracy,
    predict,
)
from arch_search.tasks.text import answers, score
from blocks.registry import resolve_options


def small_model(*kinds, vocabulary=6):
    layers = tuple(
        LayerSpec(kind=k, options=asdict(resolve_options(k, {}, width=16)), mlp_width=16)
        for k in kinds
    )
    spec = ModelSpec(layers=layers, width=16, vocabulary=vocabulary, tie_embeddings=False)
    return build_model(spec, seed=0)


def context_for(name, length, **options):
    data = DataSpec(
        corpus="", tokenizer="", sequence_length=length, batch=8,
        task=resolved_task({name: options}),
    )  # fmt: skip
    return EvaluationContext(
        split=None,  # type: ignore[arg-type]
        data=data,
        sequence_length=length,
        device=torch.device("cpu"),
        precision="float32",
    )


def test_one_error_spoils_the_sequence_from_there_on():
    asked = np.ones((2, 6), dtype=bool)
    right = asked.copy()
    right[0, 2] = False
    assert cumulative_sequence_accuracy(right, asked).tolist() == [1, 1, 0.5, 0.5, 0.5, 0.5]
    assert cumulative_sequence_accuracy(asked, asked).tolist() == [1] * 6


def test_scores_by_hand():
    targets = np.array([[0, 1, IGNORED, 1], [1, 0, IGNORED, IGNORED]])
    said = np.array([[0, 1, 1, 0], [0, 0, 0, 0]])
    items = Examples(tokens=np.zeros((2, 4), np.int64), targets=targets)
    scores = Scores(items, said, generator("in_context_recall"))
    found = scores.up_to(4)
    assert found["accuracy"] == pytest.approx(3 / 5)
    assert found["last_accuracy"] == pytest.approx(1 / 2)
    assert found["sequence_accuracy"] == 0
    assert found["least_accuracy"] == 0  # at position 4, which half of the items ask
    assert found["balanced_accuracy"] == pytest.approx((1 + 1 / 3) / 2)
    assert scores.up_to(2)["sequence_accuracy"] == pytest.approx(1 / 2)
    assert scores.by_position(4) == {
        "length": [4, 4, 4],
        "position": [1, 2, 4],
        "items": [2, 2, 1],
        "accuracy": [0.5, 1.0, 0.0],
        "sequence_accuracy": [0.5, 0.5, 0.0],
    }
    assert scores.by_item(4)["first_error"] == [4, 1]


def test_balanced_accuracy_counts_a_class_that_was_only_predicted_as_never_right():
    """As the macro average of torchmetrics, by which MAD scores."""
    assert balanced_accuracy(np.array([0, 0, 2]), np.array([0, 0, 1])) == pytest.approx(1 / 3)


@pytest.mark.parametrize("kind", ["m2rnn", "gated_deltanet", "gru", "attention"])
def test_rows_and_pieces_do_not_change_an_answer(kind, monkeypatch):
    """Long rows are read in pieces with carried state, and rows in groups of any size."""
    model, context = small_model(kind, "mamba2"), context_for("state_tracking", 16)
    tokens = np.random.default_rng(0).integers(6, size=(7, 50))
    whole = predict(model, tokens, context)
    assert len(np.unique(whole)) > 3
    for limit, rows in ((16, 1), (16, 3), (1 << 14, 2)):
        monkeypatch.setattr(synthetic, "TOKENS_PER_FORWARD", limit)
        monkeypatch.setattr(synthetic, "MOST_ROWS", rows)
        assert (predict(model, tokens, context) == whole).all()


def test_what_stands_behind_an_item_changes_no_answer():
    model, context = small_model("gru", "gated_deltanet"), context_for("state_tracking", 16)
    tokens = np.random.default_rng(1).integers(6, size=(4, 20))
    longer = np.concatenate([tokens, np.zeros((4, 9), np.int64)], axis=1)
    assert (predict(model, longer, context)[:, :20] == predict(model, tokens, context)).all()


class Oracle(LanguageModel):
    """Not trained: computes the products of S3 by their table, and forgets after `memory` steps."""

    def __init__(self, memory: int) -> None:
        super().__init__(small_model("gru").spec)
        self.memory = memory

    def forward(self, tokens, states=None, *, reset=None):
        from arch_search.synthetic.groups import group
        from arch_search.synthetic.state_tracking import prefix_products

        products = prefix_products(group("S3"), tokens.numpy())
        products[:, self.memory :] = 0
        return torch.eye(6)[torch.from_numpy(products)], []


@pytest.mark.parametrize(("memory", "solved"), [(64, 1.0), (63, 0.0), (32, 0.0)])
def test_a_model_that_knows_the_products_solves_the_task(memory, solved):
    context = context_for("state_tracking", 16)
    found = task("task")(Oracle(memory), context, read_options("task", {"items": 300}))
    names = task("task").metric_names(read_options("task", {}))
    assert set(found.metrics) <= set(names)
    assert found.metrics["task/solved"] == solved
    assert found.metrics["task/chance"] == pytest.approx(1 / 6)
    assert found.metrics["task/accuracy_2x"] == 1
    assert found.metrics["task/least_accuracy_2x"] == 1
    if memory < 64:
        assert found.metrics["task/last_accuracy_4x"] == pytest.approx(1 / 6, abs=0.07)
        assert found.metrics["task/sequence_accuracy_4x"] < 0.25
    by_position = found.tables["by_position"]
    assert by_position["position"] == list(range(1, 65))
    assert by_position["sequence_accuracy"][31] == 1


def test_a_constant_answer_is_at_chance():
    found = task("task")(Oracle(0), context_for("state_tracking", 16),
                         read_options("task", {"items": 1000}))  # fmt: skip
    assert found.metrics["task/accuracy_4x"] == pytest.approx(1 / 6, abs=0.01)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("passkey", {"digits": 3}, (1 + 3 * 0.1) / 4),
        ("passkey", {"digits": 1}, (1 + 0.1) / 2),
        ("needles", {"form": "small", "digits": 2}, (2 * 0.1 + 1) / 3),
        ("modular_arithmetic", {"brackets": True}, None),
        ("memorization", {"vocabulary": 12}, None),
        ("entity_tracking", {}, None),
        ("state_tracking", {"group": "S3", "moved": 2}, None),
        ("state_tracking", {"group": "S3"}, 1 / 6),
        ("selective_copying", {"vocabulary": 10}, 1 / 8),
    ],
)
def test_chance_is_the_accuracy_of_the_best_constant_answers(name, options, expected):
    """Of the most frequent answer at each place of an answer, on items drawn apart."""
    length, (_, read) = 256 if name != "state_tracking" else 12, read_task({name: options})
    chance = chance_of_accuracy(name, read, length)
    assert chance == chance_of_accuracy(name, read, length)
    draws = {"length": length, "indices": np.arange(2000), "purpose": "evaluate", "seed": 5}
    items = examples(generator(name), name, read, **draws)
    said, places = np.zeros_like(items.targets), np.cumsum(items.asked, axis=1)
    for place in range(1, places.max() + 1):
        there = items.asked & (places == place)
        said[there] = np.bincount(items.targets[there]).argmax()
    found = Scores(items, said, generator(name)).up_to(length)["accuracy"]
    assert found == pytest.approx(chance, abs=0.02)
    if expected is not None:
        assert chance == pytest.approx(expected, abs=0.01)
    elif name != "entity_tracking":
        assert chance > generator(name).chance(read, length) + 0.01


def test_a_text_has_a_chance_of_its_characters_and_of_the_whole_answer():
    context = context_for("passkey", 512, digits=3)
    options = read_options("task", {"items": 20})
    found = task("task")(small_model("gru", vocabulary=257), context, options).metrics
    assert found["task/chance"] == pytest.approx(0.325, abs=0.01)
    assert found["task/sequence_chance"] == 1e-3
    assert set(found) <= set(task("task").metric_names(options))


def test_another_task_than_the_one_trained_on_can_be_asked():
    options = read_options(
        "task", {"task": {"state_tracking": {"group": "S3", "moved": 2}}, "label": "swaps"}
    )
    found = task("task")(Oracle(1000), context_for("state_tracking", 8), options)
    assert found.metrics["swaps/solved"] == 1


@pytest.mark.parametrize(
    ("text", "strict", "contained"),
    [
        (" 12, 34;", 1, 1),
        ("12, 34; 9", 1, 1),
        (" 34, 12;", 0, 1),
        (" 12, 99;", 0, 0.5),
        ("", 0, 0),
        ("1 2 3 4", 0, 0),
    ],
)
def test_strict_and_containment_scores(text, strict, contained):
    item = TextItem(prompt="?", said=" 12, 34;", answers=("12", "34"))
    assert score(item, text) == (strict, contained)


def test_answers_do_not_depend_on_the_batch_or_the_lengths_in_it():
    model = small_model("gated_deltanet", "attention", vocabulary=257)
    context = context_for("passkey", 32)
    prompts = ["no no #12;no ?", "#7;?", "no #33;no no no ?", "no no #12;no ?"]
    items = [TextItem(prompt=p, said=" 12", answers=("12",)) for p in prompts]
    together = answers(model, items, BYTES, context, 4)
    alone = [answers(model, [item], BYTES, context, 4)[0] for item in items]
    assert together == alone
    assert together[0] == together[3]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("passkey", {"items": 3, "multiples": [16]}),
        ("needles", {"items": 2, "multiples": [32], "task": {"kind": "MV"}, "label": "MV"}),
        ("programs", {"items": 3, "multiples": [2, 4]}),
    ],
)
def test_a_model_of_a_corpus_is_asked_in_its_own_tokens(name, options, context, model_of):
    read = read_options(name, options)
    task(name).check(context.split, context.sequence_length, read)
    found = task(name)(model_of("gated_deltanet"), context, read)
    assert set(found.metrics) == set(task(name).metric_names(read))
    table = found.tables["answers"]
    assert len(table["said"]) == read.items * len(read.multiples)
    assert all(0 <= score <= 1 for score in table["contained"])
    chance = {"passkey": 1e-5, "MV": 0.0, "programs": 0.1}
    assert found.metrics[f"{read.label or name}/chance"] == chance[read.label or name]
    again = task(name)(model_of("gated_deltanet"), context, read)
    assert again == found


def test_needles_lie_in_any_corpus_that_is_named(context, model_of, tmp_path, monkeypatch):
    folder = tmp_path / "essays"
    folder.mkdir()
    for i in range(24):
        (folder / f"{i}.txt").write_text("Nobody but this essay says wombat. " * 9)
    monkeypatch.chdir(tmp_path)
    options = {"items": 2, "multiples": [24], "haystack": {"folder": "essays"}}
    read = read_options("needles", options)
    assert read.haystack == {"folder": str(folder)}  # wherever a worker stands
    asked = []

    def watched(model, items, *rest):
        asked.extend(item.prompt for item in items)
        return ["" for _ in items]

    monkeypatch.setattr("arch_search.tasks.text.answers", watched)
    task("needles").check(context.split, context.sequence_length, read)
    found = task("needles")(model_of("gru"), context, read)
    assert all(prompt.count("says wombat.") > 5 for prompt in asked)
    assert "haystack: {'folder':" in found.convention
    wrong = read_options("needles", {**options, "haystack": {"folder": "essay"}})
    with pytest.raises(UsageError, match=r"needles\.haystack: no folder .*essay\b"):
        task("needles").check(context.split, context.sequence_length, wrong)
    with pytest.raises(UsageError, match="only needles lie in one"):
        task("passkey").check(context.split, 512, read_options("passkey", {"haystack": "sotu"}))


def test_an_option_that_came_later_leaves_what_was_evaluated_as_it_was():
    [plain] = resolve([{"passkey": {"items": 7}}])
    assert "haystack" not in plain.options
    [other] = resolve([{"needles": {"haystack": "stdlib"}}])
    assert other.options["haystack"] == "stdlib"
    assert plain.hash == "1b750782ee2ee1be"


def test_a_length_without_room_is_refused_before_anything_runs(context):
    with pytest.raises(UsageError, match=r"evaluate\.needles at 1x: 32 tokens have no room"):
        task("needles").check(context.split, 32, read_options("needles", {}))
