"""lm-evaluation-harness on our models, with tasks and data that stand in local files."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from arch_search.errors import UsageError
from arch_search.tasks.harness.suites import SUITES, expand, suite_means
from arch_search.tasks.harness.task import LmEval

CHOICES = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: questions.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: choices
doc_to_target: label
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
"""
PAGES = """
task: pages
dataset_path: json
dataset_kwargs: {data_files: {test: pages.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{page}}"
should_decontaminate: false
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
"""
ANSWERS = """
task: answers
dataset_path: json
dataset_kwargs: {data_files: {test: questions.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[0]}}"
generation_kwargs: {until: ["e"], max_gen_toks: 24}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
QUESTIONS = [
    {"question": f"{word * (i + 1)}?", "choices": [" yes", " no", " perhaps"], "label": i % 3}
    for i, word in enumerate(["Is it", "May one", "What", "Why", "Who", "Where to", "Ah"])
]
TEXTS = ["One page of text,\nand a second line.", "Ein Blatt: äöü.", "word " * 40]


def write_lines(path: Path, rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder of task files with their data beside them."""
    folder = tmp_path / "tasks"
    write_lines(folder / "questions.jsonl", QUESTIONS)
    write_lines(folder / "pages.jsonl", [{"page": text} for text in TEXTS])
    for name in ("choices", "again"):
        (folder / f"{name}.yaml").write_text(CHOICES.format(name=name))
    (folder / "pages.yaml").write_text(PAGES)
    (folder / "answers.yaml").write_text(ANSWERS)
    return folder


@pytest.fixture
def evaluate(context, files):
    """Evaluate a model on tasks of the folder; says what was said, too."""

    def run(model, *tasks, **options):
        said: list[str] = []
        asked = LmEval.Options(tasks=tasks, include=(str(files),), **options)
        LmEval().check(context.split, context.sequence_length, asked)
        return LmEval()(model, replace(context, say=said.append), asked), said

    return run


def test_a_uniform_model_of_bytes_has_what_anyone_can_work_out(evaluate, uniform):
    found, said = evaluate(uniform, "pages", "choices", "answers", limit=0)
    assert not said
    metrics = found.metrics
    assert metrics["lm_eval/pages/bits_per_byte"] == pytest.approx(8, rel=1e-8)
    assert metrics["lm_eval/pages/byte_perplexity"] == pytest.approx(256, rel=1e-7)
    size = sum(len(text.encode()) for text in TEXTS)
    words = sum(len(re.split(r"\s+", text)) for text in TEXTS)
    assert math.log(metrics["lm_eval/pages/word_perplexity"]) == pytest.approx(
        size * math.log(256) / words, rel=1e-7
    )
    # The shortest choice is the likeliest; by their lengths all are alike.
    assert metrics["lm_eval/choices/acc"] == sum(q["label"] == 1 for q in QUESTIONS) / 7
    assert metrics["lm_eval/choices/acc_norm"] in {sum(q["label"] == k for q in QUESTIONS) / 7
                                                   for k in range(3)}  # fmt: skip
    rows = found.tables["lm_eval"]
    chance = dict(zip(rows["name"], rows["chance"], strict=True))
    assert chance["lm_eval/choices/acc"] == pytest.approx(1 / 3)
    assert "lm-eval 0.4" in found.convention
    assert "at most 4096 tokens" in found.convention


@pytest.mark.parametrize("kinds", [("m2rnn", "attention"), ("gated_deltanet",)])
def test_neither_the_batch_nor_a_second_time_changes_a_score(kinds, evaluate, model_of):
    model, tasks = model_of(*kinds), ("choices", "pages", "answers")
    once, again = (evaluate(model, *tasks)[0] for _ in range(2))
    assert once == again  # to the bit, items and all
    alone, few = (evaluate(model, *tasks, batch=batch)[0] for batch in (1, 2))
    for other in (alone, few):
        assert other.metrics == pytest.approx(once.metrics, rel=1e-6)
        items = other.tables["lm_eval_items"]
        assert items["value"] == pytest.approx(once.tables["lm_eval_items"]["value"], rel=1e-6)
    assert len(set(once.tables["lm_eval_items"]["answer"])) > 12  # the model answers variously


def test_windows_shorten_what_is_seen_and_say_so(evaluate, model_of):
    model = model_of("gru")
    whole, _ = evaluate(model, "pages", "choices")
    short, _ = evaluate(model, "pages", "choices", max_length=16)
    assert short.metrics["lm_eval/pages/bits_per_byte"] != pytest.approx(
        whole.metrics["lm_eval/pages/bits_per_byte"], rel=1e-4
    )
    assert "at most 16 tokens" in short.convention
    with pytest.raises(ValueError, match=r"raise lm_eval\.max_length"):
        evaluate(model, "choices", max_length=5)
    with_end, _ = evaluate(model, "choices", begin=True)
    assert with_end.tables["lm_eval_items"] != whole.tables["lm_eval_items"]


def test_generation_ends_at_the_stop_and_is_kept_item_by_item(evaluate, model_of):
    found, _ = evaluate(model_of("m2rnn"), "answers")
    answers = [json.loads(text)[0] for text in found.tables["lm_eval_items"]["answer"]]
    assert len(answers) == len(QUESTIONS)
    assert not any("e" in text for text in answers)
    assert any(answers)


def test_retrieval_tasks_read_a_local_copy_and_absent_data_harm_nothing(
    evaluate, uniform, tmp_path
):
    data = tmp_path / "data"
    rows = [
        {"context": "[DOC] A cat sat. Where?", "question": "Where?", "answers": ["", "mat"]},
        {"context": "It ran. ", "question": "Who ran?", "answers": ["dog"]},
    ]
    write_lines(data / "hazyresearch" / "based_triviaqa" / "validation.jsonl", rows)
    found, said = evaluate(uniform, "based_triviaqa", "based_drop", "pages", data=str(data))
    assert found.metrics["lm_eval/based_triviaqa/contains"] == 0.5  # anything contains nothing
    assert "lm_eval/pages/bits_per_byte" in found.metrics
    assert found.tables["lm_eval_absent"]["task"] == ["based_drop"]
    assert len(said) == 1
    assert f"based_drop (data set hazyresearch/based_drop is not in {data}" in said[0]
    found, said = evaluate(uniform, "based_drop")
    assert found.metrics == {}
    assert "nothing is left to evaluate: based_drop (data set" in said[0]


def test_what_a_model_gone_wrong_cannot_say_harms_nothing(evaluate, model_of, files):
    model = model_of("gru")
    with torch.no_grad():
        model.head.weight.mul_(1e4)
    (files / "code.yaml").write_text(ANSWERS.replace("answers", "code") + "unsafe_code: true\n")
    found, said = evaluate(model, "pages", "choices", "code")
    assert "pages (its numbers are too large" in said[0]
    assert "code (it would execute what the model writes)" in said[0]
    assert list(found.metrics) == ["lm_eval/choices/acc", "lm_eval/choices/acc_norm"]


def test_prompts_of_the_retrieval_tasks():
    from arch_search.tasks.harness.yaml.based import contains, prompt, prompt_without_marks

    doc = {"context": "[TLE] It fell.  Where? where?", "question": "Where?", "answers": ["Here"]}
    assert prompt(doc) == "[TLE] It fell. Where?"
    assert prompt_without_marks(doc) == "It fell. Where?"
    assert contains(doc, ["it is HERE."]) == {"contains": 1.0}
    assert contains(doc, ["nowhere"]) == {"contains": 1.0}  # as the reference counts it
    assert contains(doc, ["there"]) == {"contains": 1.0}
    assert contains(doc, ["then"]) == {"contains": 0.0}


def test_suites_are_the_papers_lists_and_have_a_mean_only_if_complete():
    assert len(SUITES["zero_shot"].tasks) == 12
    assert expand(["piqa", "zero_shot", "mine"])[:2] == ("piqa", "wikitext")
    assert len(expand(["piqa", "zero_shot", "mine"])) == 13
    every = {f"lm_eval/{task}/acc": 0.5 for task in SUITES["zero_shot"].tasks}
    del every["lm_eval/wikitext/acc"]
    assert suite_means(["zero_shot"], every) == {}
    every["lm_eval/wikitext/word_perplexity"] = 30.0
    every["lm_eval/piqa/acc_norm"] = 1.0
    assert suite_means(["zero_shot"], every) == {
        "lm_eval/zero_shot/acc_mean": 0.5,
        "lm_eval/zero_shot/acc_norm_mean": pytest.approx(0.5 + 0.5 / 11),
    }


def test_what_is_wrong_is_said_before_anything_runs(evaluate, uniform, tmp_path):
    with pytest.raises(UsageError, match="tasks names none; give tasks of lm-eval, or a suite"):
        evaluate(uniform)
    with pytest.raises(UsageError, match=r"evaluate.lm_eval.data: no folder /nowhere"):
        evaluate(uniform, "pages", data="/nowhere")
    with pytest.raises(UsageError, match="256 tokens are too few for RULER"):
        evaluate(uniform, "ruler", lengths=(256, 4096))


def test_nothing_asks_nltk_to_download_and_what_is_missing_is_named(tmp_path, monkeypatch):
    nltk = pytest.importorskip("nltk")
    from arch_search.tasks.harness.local_data import local_data
    from arch_search.tasks.harness.running import _first_line

    asked = []
    monkeypatch.setattr(nltk, "download", asked.append)
    for download in (False, True):
        with local_data(None, (), cache=tmp_path, download=download):
            nltk.download("punkt_tab")
    assert asked == ["punkt_tab"]
    with pytest.raises(LookupError) as caught:
        nltk.data.find("tokenizers/no_such_tokens")
    said = _first_line(caught.value)  # below a line of asterisks
    assert re.fullmatch(r"LookupError: Resource '?no_such_tokens'? not found\.", said)


def test_what_lm_eval_prints_is_no_answer_of_ours(capsys):
    from arch_search.tasks.harness.running import _quiet

    with _quiet():
        print("Downloaded punkt_tab on rank 0")
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_stock_tasks_run_from_local_copies_and_a_misspelt_one_is_refused(
    evaluate, uniform, tmp_path
):
    data = tmp_path / "data"
    arc = data / "allenai" / "ai2_arc" / "ARC-Easy"
    row = {"id": "1", "question": "What is wet?", "answerKey": "B",
           "choices": {"text": ["stone", "rain"], "label": ["A", "B"]}}  # fmt: skip
    for split in ("train", "validation", "test"):
        write_lines(arc / f"{split}.jsonl", [row, row])
    write_lines(data / "hazyresearch" / "based-squad" / "validation.jsonl",
                [{"text": "The capital is", "value": ""}])  # fmt: skip
    found, said = evaluate(uniform, "arc_easy", "squad_completion", "hellaswag", data=str(data))
    assert found.metrics["lm_eval/arc_easy/acc"] == 1.0
    assert found.metrics["lm_eval/squad_completion/contains"] == 1.0
    assert "hellaswag (data set Rowan/hellaswag is not in" in said[0]
    with pytest.raises(
        UsageError, match="no task, group or tag 'arc_eazy'; did you mean 'arc_easy'"
    ):
        evaluate(uniform, "arc_eazy")
