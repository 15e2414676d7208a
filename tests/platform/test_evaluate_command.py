"""`arch-search evaluate`: one command on a finished run, and its checkpoint lost and had back."""

import json
import shutil
from dataclasses import replace

import pytest

import arch_search
from arch_search.attempt import Attempt
from arch_search.commands.ending import show_ending
from arch_search.control import check_control
from arch_search.errors import UsageError
from arch_search.files import read_json
from arch_search.model import build_model
from arch_search.records import read_experiment
from arch_search.storage import Root
from arch_search.stored_model import keep_imported

from .conftest import plan_for, run_one

CHOICE = """
task: weather
dataset_path: json
dataset_kwargs: {data_files: {test: weather.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: choices
doc_to_target: label
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


@pytest.fixture(scope="module")
def trained(prepared, tmp_path_factory):
    """A root with one trained run of two, and lm-eval's task files beside it."""
    base = tmp_path_factory.mktemp("evaluate")
    root = Root(base / "root").make()
    plan = plan_for(prepared)
    (root.path / "data").symlink_to(prepared.path / "data")
    root.experiment(plan.name).write_plan(plan)
    run_one(root, plan, plan.runs[0])
    tasks = base / "tasks"
    tasks.mkdir()
    (tasks / "weather.yaml").write_text(CHOICE)
    rows = [{"question": f"Day {i}: is it wet?", "choices": [" yes", " no"], "label": i % 2}
            for i in range(6)]  # fmt: skip
    (tasks / "weather.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root, plan, tasks


@pytest.fixture
def command(monkeypatch, cli, trained):
    monkeypatch.setenv("ARCH_SEARCH_ROOT", str(trained[0].path))

    def run(*arguments, code=0):
        found, out, err = cli("evaluate", *arguments)
        assert found == code, err
        return out if code == 0 else err

    return run


def test_one_command_evaluates_through_lm_eval_and_again_to_the_bit(command, trained):
    root, plan, tasks = trained
    name = f"{plan.name}/{plan.runs[0].arm}/0"
    asked = ("--task", "lm_eval", "tasks=[weather]", f"include=[{tasks}]", "--json")
    (first,) = json.loads(command(name, *asked))
    assert 0 <= first["metrics"]["lm_eval/weather/acc"] <= 1
    assert first["note"] == "done"
    (kept,) = json.loads(command(plan.runs[0].hash[:8], *asked))
    assert kept["note"] == "kept from before"
    (again,) = json.loads(command(plan.name, *asked, "--again"))
    assert again["note"] == "again: equal to before, to the bit"
    files = sorted((root.run(plan.runs[0].hash).path / "evaluations").glob("*.json"))
    made = [read_json(file) for file in files]
    assert len(made) == 3
    assert all(len(one["made"]["code"]) == 16 for one in made)
    assert len({one["made"]["weights"] for one in made}) == 1
    assert len({one["made"]["code"] for one in made}) == 2  # of lm_eval, and of language.py
    frame = arch_search.results(plan.name, root=root.path)
    assert frame["lm_eval/weather/acc"][0] == first["metrics"]["lm_eval/weather/acc"]
    assert "lm_eval" in command(plan.name)
    rows = arch_search.evaluate(name, ["newlines"], root=root.path)
    assert list(rows["metric"]) == [
        "newlines/loss_in_training_length",
        "newlines/loss_worst_beyond",
    ]
    assert list(rows["note"]) == ["done"] * 2


def test_an_experiment_may_rest_on_a_task_of_lm_eval(trained, prepared):
    _, _, tasks = trained
    asked = f"{{lm_eval: {{tasks: [weather], include: [{tasks}], limit: 4}}}}"
    plan = plan_for(prepared, f"evaluate=[{asked}]", "primary.metric=lm_eval/weather/acc")
    assert plan.evaluations[0].options["include"] == (str(tasks),)
    for change, says in (
        (f"evaluate=[{asked}, {asked}]", "lm_eval and lm_eval both report 'lm_eval/weather/'"),
        (f"evaluate=[{asked.replace('weather', 'wether')}]", "did you mean 'lm_eval/wether/'"),
        (f"evaluate=[{asked.replace('limit', 'limt')}]", "evaluate.lm_eval.limt"),
    ):
        with pytest.raises(UsageError, match=says):
            plan_for(prepared, change, "primary.metric=lm_eval/weather/acc")


def test_a_checkpoint_on_the_way_is_kept_apart(command, trained):
    root, plan, _ = trained
    run = root.run(plan.runs[0].hash)
    option = ("--task", "{perplexity: {tokens_per_document: 64, documents: 3}}", "--json")
    (middle,) = json.loads(command(run.hash, "--step", "20", *option))
    (last,) = json.loads(command(run.hash, *option))
    assert middle["model"].endswith("at step 20")
    assert middle["metrics"] != last["metrics"]
    folder = run.attempt(1).path / "checkpoints" / "00000020"
    (by_folder,) = json.loads(command(folder, *option))
    assert by_folder["note"] == "kept from before"
    assert by_folder["metrics"] == middle["metrics"]
    assert "at step 20" not in command(run.hash, "--json")


def test_a_step_is_asked_of_each_run_of_an_experiment(command, trained):
    root, plan, _ = trained
    option = ("--task", "{perplexity: {tokens_per_document: 48, documents: 3}}", "--json")
    (middle,) = json.loads(command(plan.name, "--step", "20", *option))
    (by_name,) = json.loads(command(plan.runs[0].hash, "--step", "20", *option))
    assert middle["metrics"] == by_name["metrics"]
    assert by_name["note"] == "kept from before"
    kept = json.loads(command(plan.name, "--step", "20", "--json"))
    assert {one["model"].partition(" at ")[2] for one in kept} == {"step 20"}
    assert middle["metrics"] in [one["metrics"] for one in kept]
    assert "keeps no checkpoint of step 21" in command(plan.name, "--step", "21", code=2)
    folder = root.run(plan.runs[0].hash).attempt(1).path / "checkpoints" / "00000020"
    assert "is of step 20" in command(folder, "--step", "5", code=2)


def test_again_alone_repeats_what_is_kept(command, trained):
    _, plan, _ = trained
    command(plan.name, "--task", "{loss_by_position: {documents: 3}}")
    kept = json.loads(command(plan.name, "--json"))
    again = json.loads(command(plan.name, "--again", "--json"))
    assert [one["metrics"] for one in again] == [one["metrics"] for one in kept]
    assert {one["note"] for one in again} == {"again: equal to before, to the bit"}


def test_an_imported_model_is_evaluated_on_each_text_apart(command, trained):
    root, plan, _ = trained
    spec = plan.runs[0].spec
    keep_imported(root, "elsewhere", build_model(spec.model, seed=3, device="cpu"), {})
    asked = ("elsewhere", "--task", "{perplexity: {documents: 2, tokens_per_document: 65}}",
             "--corpus", "sotu", "--json")  # fmt: skip
    (at_32,) = json.loads(command(*asked, "--length", "32"))
    (at_16,) = json.loads(command(*asked, "--length", "16"))
    (kept,) = json.loads(command(*asked, "--length", "32"))
    assert [one["note"] for one in (at_32, at_16, kept)] == ["done", "done", "kept from before"]
    assert at_32["text"] == kept["text"] == "sotu as bytes, 32 tokens in a row"
    assert at_16["text"] == "sotu as bytes, 16 tokens in a row"
    listed = json.loads(command("elsewhere", "--json"))
    assert {one["text"] for one in listed} == {at_32["text"], at_16["text"]}
    for more, says in (
        (("--task", "newlines"), "--corpus NAME --tokenizer NAME"),
        (("--task", "newlines", "--corpus", "sotu"), "give --length"),
        (("--step", "5"), "was not trained here"),
        (
            ("--task", "{task: {task: {mqar: {vocabulary: 8192}}}}", *asked[3:5], "--length", "32"),
            "8192 tokens so",
        ),
        (("--task", "task", *asked[3:5], "--length", "32"), "name one, as {task"),
    ):
        assert says in command("elsewhere", *more, code=2)


def test_what_cannot_be_compared_does_not_hide_how_the_runs_ended(root, capsys, monkeypatch):
    monkeypatch.setenv("ARCH_SEARCH_ROOT", str(root.path))
    plan = plan_for(root)
    root.experiment(plan.name).write_plan(plan)
    run = run_one(root, plan, plan.runs[0])
    shutil.rmtree(run.path / "evaluations")
    show_ending(root, plan.name)
    assert "no run measured" in capsys.readouterr().err


def test_a_run_writes_text_that_depends_on_the_seed_alone(trained, monkeypatch, cli):
    root, plan, _ = trained
    monkeypatch.setenv("ARCH_SEARCH_ROOT", str(root.path))

    def write(*options, code=0):
        asked = ("generate", plan.runs[0].hash, "--tokens", "24", "--json", *options)
        found, out, err = cli(*asked)
        assert found == code, err
        return err if code else [(one["prompt"], one["text"]) for one in json.loads(out)]

    drawn = ("--temperature", "1", "-p", "My fellow", "-p", "We")
    first = write(*drawn)
    assert [prompt for prompt, _ in first] == ["My fellow", "We"]
    assert all(text for _, text in first)
    assert write(*drawn) == first
    assert write(*drawn, "--seed", "1") != first
    assert write(*drawn[:4]) == first[:1]  # alone or beside another
    assert write() == write()
    assert "temperature -1" in write("--temperature", "-1", code=2)
    assert "temperature nan" in write("--temperature", "nan", code=2)
    assert "--device tpu9" in write("--device", "tpu9", code=2)


def test_a_lost_last_checkpoint_is_had_back_with_equal_weights(command, trained):
    root, plan, _ = trained
    run = root.run(plan.runs[0].hash)
    option = ("--task", "{perplexity: {tokens_per_document: 32, documents: 5}}")
    before = run.latest_checkpoint()[2] / "model.safetensors"
    weights = before.read_bytes()
    flipped = bytearray(weights)
    flipped[-5] ^= 4
    before.write_bytes(flipped)
    said = command(run.hash, *option, code=2)
    assert "step, 25, is damaged (model.safetensors is not what was written)" in said
    shutil.rmtree(before.parent)
    said = command(run.hash, *option, code=2)
    assert f"arch-search evaluate {run.hash} --retrain" in said
    with pytest.raises(ValueError, match="--retrain; or leave the new evaluation out"):
        run_one(root, plan_for(root, "evaluate=[newlines, perplexity]"), plan.runs[0])
    assert "val/bits_per_byte" in command(run.hash, "--retrain", *option)
    assert (run.latest_checkpoint()[2] / "model.safetensors").read_bytes() == weights
    assert "equal to before, to the bit" in run.attempts()[-1].journal.read_text()


def test_what_is_wrong_is_one_line(command, trained):
    _, plan, _ = trained
    kept = ("--task", "{perplexity: {tokens_per_document: 48, documents: 3}}")
    command(plan.name, *kept)
    for arguments, says in (
        ((plan.name, "--task", "perplexty"), "did you mean 'perplexity'"),
        ((plan.name, "--task", "perplexity", "windw=3"), "evaluate.perplexity.windw"),
        ((plan.name, "--task", "perplexity", "documents=-1"), "equal to 0 (got -1)"),
        ((plan.name, "--task", "perplexity", "window"), "expected KEY=VALUE"),
        ((plan.name, "--task", "perplexity", "-t", "newlines", "window=3"), "exactly one --task"),
        ((plan.name, "--task", "loss_by_position", "multiple=5000"), "use a smaller multiple"),
        ((f"{plan.name}/baseline/7", "--task", "newlines"), "has no run 'baseline/7'"),
        ((plan.name, "--task", "lm_eval"), "give tasks of lm-eval, or a suite: zero_shot"),
        ((plan.name, "--task", "perplexity", "--device", "tpu9"), "--device tpu9"),
        ((plan.name, *kept, "--corpus", "sotu"), "for an imported model"),
        ((plan.name, "--task", "perplexity", "--length", "7"), "for an imported model"),
        ((plan.name, "--task", "knockout", "layers=[7]"), "no layer 7"),
        ((plan.name, "--task", "{task: {task: {mqar: {vocabulary: 8192}}}}"), "8192 tokens so"),
        ((plan.name, "--task", "task"), "name one, as {task"),
        ((plan.name, "window=3"), "name it by --task"),
        *(
            ((plan.name, "--task", text), "is no evaluation")
            for text in ("[perplexity]", "3", "{perplexity: }", "{perplexity: [1]}")
        ),
    ):
        assert says in command(*arguments, code=2), arguments


def test_unequal_code_of_evaluations_is_said(trained):
    root, plan, _ = trained
    experiment = read_experiment(plan.name, root)
    run = experiment.runs[0]
    changed = [replace(e, made={**e.made, "code": "f" * 16}) for e in run.evaluations]
    planned = replace(run.planned, seed=1)
    other = replace(run, planned=planned, evaluations=tuple(changed))
    warnings = check_control(experiment, [run, other]).warnings
    assert any("Unequal code of evaluation perplexity between runs" in w for w in warnings)
    assert not check_control(experiment, [run, replace(run, planned=planned)]).warnings


def test_a_run_at_work_is_not_trained_again(command, trained):
    root, plan, _ = trained
    run = root.run(plan.runs[1].hash)
    run.freeze(plan.runs[1].spec)
    attempt = Attempt.claim(run, experiment=plan.name)
    try:
        assert "has not finished" in command(run.hash, "--retrain", code=2)
    finally:
        attempt.end("KILLED", "the test ends")
