"""The command line as a person meets it: wrong input is one line on stderr and exit code 2."""

import json
import os
import subprocess
import sys

import pytest

from .conftest import FIRST, SMALL

BAD = [
    (["plan", "nowhere.yaml"], "no experiment file at nowhere.yaml"),
    (["plan", FIRST, "modle.width=3"], "did you mean 'model'"),
    (["plan", FIRST, "model.mlp.widht=3"], "did you mean 'width'"),
    (["plan", FIRST, "model.blocks={m: {kind: m2rnn, ky_dim: 3}}", "arms.with=m"], "key_dim"),
    (["plan", FIRST, "model.blocks={m: {kind: m2rnnn}}", "arms.with=m"], "Did you mean 'm2rnn'"),
    (["plan", FIRST, "model.blocks={m: {key_dim: 3}}", "arms.with=m"], "give its kind"),
    (["plan", FIRST, "model.pattern=(gdn*3 attn"], "never closed"),
    (["plan", FIRST, "model.pattern=gdn*3 atn"], "unknown block 'atn'"),
    (["plan", FIRST, "arms.cells=[{count: 9, position: first}]"], "9 layers; only 6"),
    (["plan", FIRST, "arms.replace=gru"], "no layer is called 'gru'"),
    (["plan", FIRST, "arms.with=gnd"], "unknown block 'gnd'"),
    (["plan", FIRST, "data.corpus=sotuu"], "Did you mean 'sotu'"),
    (["plan", FIRST, "data.tokenizer=byte"], "'bytes'"),
    (["plan", FIRST, "data.sequence_length=90M", "train.tokens=1B"], "too few"),
    (["plan", FIRST, "data.sequence_length=65536", "train.tokens=1M"], "use a smaller multiple"),
    (["plan", FIRST, "evaluate=[perplexty]"], "did you mean 'perplexity'"),
    (["plan", FIRST, "evaluate=[{perplexity: {windw: 3}}]"], "evaluate.perplexity.windw"),
    (["plan", FIRST, "evaluate=[{perplexity: {documents: -1}}]"], "equal to 0 (got -1)"),
    (["plan", FIRST, "evaluate=[perplexity, task]"], "evaluate.task.task: name one"),
    (["plan", FIRST, "evaluate=[perplexity, {task: {task: {mqar: {}}}}]"], "8192 tokens so"),
    (["plan", FIRST, "evaluate=[perplexity, {knockout: {layers: [9]}}]"], "no layer 9; the model"),
    (["plan", FIRST, "evaluate=[perplexity, {knockout: {layers: [2]}}]",
      "arms={explicit: {short: {model: {pattern: gdn attn}}}}", "hold=[]"], "0 to 1 (arm short)"),
    (["plan", FIRST, "primary.metric=val/bits_per_bite"], "did you mean 'val/bits_per_byte'"),
    (["plan", FIRST, "resources.micro_batch=9"], "micro_batch is 9"),
    (["plan", FIRST, "seeds=0"], "no seed at all"),
    (["plan", FIRST, "seeds=[1, 1]"], "lists a seed twice"),
    (["plan", FIRST, "seeds={init: [0, 0], data: [1, 1]}"], "lists a pair twice"),
    (["plan", FIRST, "train.tokens=10"], "less than one step"),
    (["plan", FIRST, "primary.metric=train/final_loss"], "reported by nothing"),
    (["plan", FIRST, "seeds={init: [1, 2], data: [1]}"], "as many of one as of the other"),
    (["plan", FIRST, "name=../../escape"], "letters, digits"),
    (["plan", FIRST, "defaults=[base]"], "unknown key 'defaults'"),
    (["status", "first_ablatoin"], "no experiment 'first_ablatoin'"),
    (["compare", "nothing"], "nothing"),
    (["report", "nothing"], "nothing"),
    (["logs", "nothing/at/0"], "nothing"),
    (["stop", "nothing"], "no experiment 'nothing'"),
    (["resume", "nothing"], "no experiment 'nothing'"),
    (["status", "../../etc"], "experiment name"),
    (["bench", "kernels"], "no CUDA device"),
    (["blocks", "m2rn"], "Did you mean 'm2rnn'"),
    (["submit", FIRST, *SMALL, "tracking.uri=http://127.0.0.1:9"], "127.0.0.1:9"),
    (["submit", FIRST, *SMALL, "resources.cpus=4096"], "4096"),
    (["submit", FIRST, *SMALL, "--address", "http://127.0.0.1:9"], "127.0.0.1:9"),
]  # fmt: skip


@pytest.mark.parametrize("arguments, says", BAD, ids=lambda value: str(value)[:60])
def test_wrong_input_is_one_clear_line_and_exit_code_2(command, arguments, says):
    code, _, err = command(*arguments)
    assert says in err
    assert code == 2
    assert err.startswith("arch-search: ")
    assert len(err.strip().splitlines()) == 1, err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "asked", ["tracking.uri=http://127.0.0.1:9", "resources.cpus=4096", "resources.gpus=4096"]
)
def test_nothing_of_a_refused_submission_is_left(command, root, asked):
    code, _, err = command("submit", FIRST, *SMALL, asked, "name=refused")
    assert code == 2, err
    assert not root.experiment("refused").path.exists()
    assert not any(run.is_frozen for run in root.runs())


def test_a_root_that_cannot_be_written_is_said(monkeypatch, cli, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ARCH_SEARCH_ROOT", str(tmp_path / "file" / "root"))
    code, _, err = cli("plan", FIRST)
    assert (code, len(err.strip().splitlines())) == (2, 1)
    assert "cannot be written" in err


def test_a_url_is_no_storage_root(monkeypatch, cli):
    code, _, err = cli("--root", "s3://bucket/x", "plan", FIRST)
    assert (code, len(err.strip().splitlines())) == (2, 1)
    monkeypatch.delenv("ARCH_SEARCH_ROOT", raising=False)
    assert "s3://bucket/x" in err


def test_the_plan_as_json_names_every_run(command):
    code, out, _ = command("plan", FIRST, *SMALL, "seeds=3", "--json")
    plan = json.loads(out)
    assert code == 0
    assert len(plan["runs"]) == 3 * len(plan["arms"]) == 6
    assert len({run["hash"] for run in plan["runs"]}) == 6


def test_the_hash_forgets_names_resources_and_evaluations_and_nothing_else(command):
    def hashes(*overrides):
        return [
            r["hash"]
            for r in json.loads(command("plan", FIRST, *SMALL, *overrides, "--json")[1])["runs"]
        ]

    same = hashes()
    without_effect = (
        *("name=other", "question=why", "resources.micro_batch=2", "log.every=3"),
        *("evaluate=[perplexity]", "primary.smallest_effect=1%", "resources.loader_workers=2"),
    )
    with_effect = (
        *("model.width=48", "train.tokens=7K", "train.optimiser.learning_rate=1e-4", "seeds=[5]"),
        *("data.batch=8", "train.schedule.name=wsd", "model.tie_embeddings=false"),
        *("train.precision=bfloat16", "data.sequence_length=32"),
    )
    for override in without_effect:
        assert hashes(override) == same, override
    for override in with_effect:
        assert not set(hashes(override)) & set(same), override


def test_a_listing_of_blocks_names_each_option_with_its_help(command):
    code, out, _ = command("blocks", "m2rnn", "--json")
    options = {row["option"]: row for row in json.loads(out)}
    assert code == 0
    assert {"key_dim", "value_dim", "nonlinearity", "gate"} <= options.keys()
    assert all(row["what it does"] for row in options.values())


@pytest.mark.parametrize(
    "modules",
    [
        "arch_search.scheduling.driver",
        "arch_search.tracking.writer, arch_search.tracking.reports",
        "arch_search.compare, arch_search.records, arch_search.commands.compare",
        "arch_search.cli; arch_search.cli.make_app()",
    ],
)
def test_driver_writer_status_and_compare_do_without_torch(modules):
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": ""})
    assert done.returncode == 0
