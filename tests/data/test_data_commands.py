"""`arch-search data` as a person meets it, and corpora with options in an experiment file."""

import json
from pathlib import Path

import pytest

FIRST = Path(__file__).parents[2] / "experiments" / "first_ablation.yaml"


@pytest.fixture
def command(monkeypatch, cli, tmp_path):
    """Run the command line in a root of its own; returns exit code, stdout and stderr."""
    monkeypatch.setenv("ARCH_SEARCH_ROOT", str(tmp_path / "root"))
    monkeypatch.chdir(tmp_path)
    Path("texts").mkdir()
    for number in range(40):
        Path(f"texts/{number}.md").write_text(f"Text {number}. " * 60)
    return cli


FOLDER = ("folder=texts", "pattern=*.md", "licence=CC0-1.0")


def test_what_was_prepared_is_listed_with_its_licence_and_hash(command):
    assert command("data", "list")[1].startswith("Nothing is prepared yet")
    code, out, err = command("data", "prepare", *FOLDER, "--tokenizer", "bpe=300", "--json")
    assert (code, err) == (0, "")
    row = json.loads(out)
    assert (row["corpus"], row["tokenizer"], row["licence"]) == ("texts", "bpe-300", "CC0-1.0")
    assert json.loads(command("data", "list", "--json")[1]) == [row]
    table = command("data", "list")[1]
    assert row["hash"] in table
    assert "stdlib" in table


def test_a_terminal_sees_how_far_it_is_and_how_fast(command, monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    code, _, err = command("data", "prepare", "sotu")
    assert code == 0
    assert "249 documents" in err
    assert "/s" in err


def test_a_damaged_manifest_is_left_out_of_the_listing_and_said(command):
    row = json.loads(command("data", "prepare", *FOLDER, "--json")[1])
    (path,) = Path("root/data").glob(f"*{row['hash']}/manifest.json")
    path.write_text("{")
    code, out, _ = command("data", "list")
    assert code == 0
    assert "Left out" in out


@pytest.mark.parametrize(
    "words, says",
    [
        (["folder=texts", "patern=*"], "unknown option 'patern'"),
        (["folder=nowhere"], "no folder"),
        (["folder=texts", "folder=b"], "folder is given twice"),
        (["folder=texts", "sotu"], "'sotu' is not key=value"),
        (["stou"], "Did you mean 'sotu'"),
        (["sotu", "--tokenizer", "bpe"], "has to be told more"),
        (["sotu", "--tokenizer", "file=no.json"], "no tokenizer file"),
    ],
)
def test_wrong_words_are_one_line_and_exit_code_2(command, words, says):
    code, _, err = command("data", "prepare", *words)
    assert code == 2
    assert says in err
    assert len(err.strip().splitlines()) == 1


CORPUS = "data.corpus={folder: texts, pattern: '*.md'}"
SHORT = ("data.sequence_length=32", "evaluate=[perplexity]", "hold=[]", "seeds=1")


def _hashes(command, *overrides):
    code, out, err = command("plan", FIRST, CORPUS, *SHORT, *overrides, "--json")
    assert code == 0, err
    plan = json.loads(out)
    return plan["arms"][0]["data"], {run["hash"] for run in plan["runs"]}


def test_an_experiment_names_its_own_corpus_tokenizer_and_packing(command):
    data, plain = _hashes(command)
    assert (data["corpus"], data["tokenizer"], data["reset"]) == ("texts", "bytes", False)
    assert len(data["manifest"]) == 16
    assert _hashes(command)[1] == plain
    for override in ("data.reset=true", "data.tokenizer={bpe: 300}"):
        changed, hashes = _hashes(command, override)
        assert not hashes & plain
    assert changed["tokenizer"] == "bpe-300"
    Path("texts").rename("moved")
    moved = "data.corpus={folder: moved, pattern: '*.md', name: texts}"
    assert _hashes(command, moved)[1] == plain


def test_an_experiments_wrong_corpus_names_the_file_and_what_to_do(command):
    code, _, err = command("plan", FIRST, "data.corpus={foldr: texts}")
    assert code == 2
    assert "Did you mean 'folder'" in err
    assert str(FIRST) in err
    assert len(err.strip().splitlines()) == 1


def test_another_corpus_or_tokenizer_takes_the_place_of_the_one_before(command):
    Path("lines.jsonl").write_text('{"text": "some text here"}\n' * 60)
    path = Path("own.yaml")
    content = FIRST.read_text().replace("data: sotu_bytes", "data: sotu_bpe")
    path.write_text(content + "data: {corpus: {folder: texts, pattern: '*.md'}}\n")
    lines = "{jsonl: lines.jsonl, name: lines}"
    arms = f"arms={{explicit: {{other: {{data: {{corpus: {lines}, tokenizer: bytes}}}}}}}}"
    bpe = "data.tokenizer={bpe: 280}"
    code, out, err = command("plan", path, *SHORT, bpe, arms, "--json")
    assert code == 0, err
    data = [arm["data"] for arm in json.loads(out)["arms"]]
    assert {(d["corpus"], d["tokenizer"]) for d in data[:-1]} == {("texts", "bpe-280")}
    assert (data[-1]["corpus"], data[-1]["tokenizer"]) == ("lines", "bytes")
    code, out, err = command("plan", path, *SHORT, bpe, f"data.corpus={lines}", "--json")
    assert code == 0, err
    assert json.loads(out)["arms"][0]["data"]["corpus"] == "lines"
