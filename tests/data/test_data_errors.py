"""What people get wrong, and what files may try: each one line, before anything has run."""

import contextlib
import gzip
import json
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arch_search.cli import main
from arch_search.data import find_corpus, find_tokenizer, load_manifest, prepare
from arch_search.data.corpora import KINDS
from arch_search.errors import UsageError

COMMIT = "0" * 40


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with files of every kind, in which the process stands."""
    monkeypatch.chdir(tmp_path)
    Path("texts").mkdir()
    for number in range(30):
        Path(f"texts/{number}.txt").write_text(f"text {number}")
    Path("few").mkdir()
    Path("few/one.txt").write_text("alone")
    Path("binary").mkdir()
    Path("binary/a.txt").write_bytes(b"first line\nsecond \xff line\n")
    Path("empty").mkdir()
    Path("good.jsonl").write_text('{"text": "a"}\n' * 30)
    Path("broken.jsonl").write_text('{"text": "a"}\n{"text": \n')
    Path("list.jsonl").write_text('{"text": "a"}\n[1]\n')
    Path("other.jsonl").write_text('{"txt": "a"}\n')
    Path("number.jsonl").write_text('{"text": "a"}\n\n{"text": 7}\n')
    Path("surrogate.jsonl").write_text('{"text": "\\ud800"}\n')
    Path("deep.jsonl").write_text("[" * 100_000 + "\n")
    Path("cut.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n' * 999)[:-9])
    Path("plain.jsonl.gz").write_text('{"text": "a"}\n')
    pq.write_table(pa.table({"body": ["a"], "n": [1]}), "table.parquet")
    Path("no.parquet").write_text("not Parquet")
    Path("tokenizer.json").write_text("{}")
    Path("model.json").write_text('{"model": {"type": "Magic"}}')
    return tmp_path


BAD_CORPORA = [
    ({}, "expected one of the keys"),
    ({"foldr": "x"}, r"got 'foldr'\. Did you mean 'folder'\?"),
    ({"folder": "texts", "jsonl": "x"}, "expected one of the keys .* got 'folder', 'jsonl'"),
    ({"folder": "texts", "patern": "*"}, r"unknown option 'patern' .* Did you mean 'pattern'"),
    ({"folder": 7}, "option 'folder' of folder is 7; expected str"),
    ({"folder": None}, "corpus folder is empty"),
    ({"folder": "text"}, r"no folder .*text\. Did you mean 'texts'\?"),
    ({"folder": "good.jsonl"}, "is a file"),
    ({"folder": "empty"}, "it is empty"),
    ({"folder": "texts", "pattern": "*.md"}, r"matches '\*\.md'; the files there end in \.txt"),
    ({"folder": "texts", "pattern": "/etc/*"}, "pattern '/etc/\\*' cannot be used"),
    ({"folder": "few"}, r"1 documents, too few .* cut_every"),
    ({"folder": "binary"}, r"a\.txt, line 2: byte 0xff is not UTF-8; .* iconv"),
    ({"folder": "texts", "min_bytes": -1}, "min_bytes is -1; expected 0 or more"),
    ({"folder": "texts", "min_bytes": 9, "max_bytes": 5}, "no document would be left"),
    ({"folder": "texts", "min_bytes": 999}, "has 0 documents: none is both within min_bytes"),
    ({"folder": "texts", "name": "a b"}, "corpus name 'a b' must be letters"),
    ({"jsonl": "god.jsonl"}, r"no JSON Lines file at .*god\.jsonl Did you mean 'good\.jsonl'"),
    ({"jsonl": "nowhere/x.jsonl"}, "its folder does not exist"),
    ({"jsonl": "broken.jsonl"}, r"broken\.jsonl, line 2 is not JSON"),
    ({"jsonl": "list.jsonl"}, r"line 2 is list; expected an object"),
    ({"jsonl": "other.jsonl"}, r"line 1 has no key 'text'; it has 'txt'\. Did you mean 'txt'"),
    ({"jsonl": "number.jsonl"}, r"line 3, key 'text': expected a string, got int"),
    ({"jsonl": "surrogate.jsonl"}, "line 1, key 'text': cannot be written as UTF-8"),
    ({"jsonl": "deep.jsonl"}, r"deep\.jsonl, line 1 is (not JSON|list)"),
    ({"jsonl": "cut.jsonl.gz"}, "is damaged"),
    ({"jsonl": "plain.jsonl.gz"}, "is damaged"),
    ({"jsonl": {"train": "good.jsonl"}}, "needs train and val"),
    ({"jsonl": {"train": "a", "valid": "b"}}, r"unknown split 'valid'; .* Did you mean 'val'"),
    ({"parquet": "no.parquet"}, r"no\.parquet is no readable Parquet file"),
    ({"parquet": "table.parquet"}, r"no column 'text'; it has body, n"),
    ({"parquet": "table.parquet", "text": "n"}, r"row 1, column 'n': expected a string, got int"),
    ({"huggingface": "nowhere"}, "neither a folder here nor owner/name"),
    ({"huggingface": "a/b"}, r"needs a commit, revision: \(40 hex digits\), got ''"),
    ({"huggingface": "a/b", "revision": "main"}, "may come to mean another text"),
    ({"wikitext": "main"}, "Salesforce/wikitext needs a commit"),
    ({"huggingface": "empty"}, "holds no data file"),
    ({"mixture": {"sotu": 1}}, "expected two or more corpora"),
    ({"mixture": {"sotu": 1, "stdlib": 0}}, "the weight of stdlib is 0; expected a number above 0"),
    ({"mixture": {"sotu": 1, "stdlb": 1}}, "Did you mean 'stdlib'"),
    ({"mixture": [{"corpus": "sotu"}]}, r"each entry of the list is \{corpus: …, weight: …\}"),
    ({"nanogpt": "texts"}, r"no token file at .*train\.bin"),
    ({"nanogpt": "texts", "max_bytes": 5}, "max_bytes cannot apply"),
    ({"nanogpt": "texts", "type": "int8"}, "expected one of uint16, uint32"),
    ({"megatron": "texts/0"}, r"no file .*0\.idx"),
    ({"tokenised": "texts"}, "has no state.json"),
    ({"named": "sott"}, "Did you mean 'sotu'"),
    ("folder", r"has to be told more; write \{folder: …\}"),
]


@pytest.mark.parametrize("spec, says", BAD_CORPORA, ids=lambda value: str(value)[:50])
def test_a_wrong_corpus_is_one_line_that_says_what_to_do(here, spec, says):
    with pytest.raises(UsageError, match=says) as caught:
        prepare(spec, "bytes", here / "root")
    assert "\n" not in str(caught.value)
    assert not list((here / "root" / "data").glob("[!.]*"))


BAD_TOKENIZERS = [
    ({"bpe": 100}, "bpe is 100; expected 257 to 1000000 tokens"),
    ({"bpe": "4K"}, "option 'bpe' of bpe is '4K'; expected int"),
    ({"bpe": 300, "trian_bytes": 5}, "Did you mean 'train_bytes'"),
    ({"file": "nowhere.json"}, "no tokenizer file"),
    ({"file": "tokenizer.json"}, "is no tokenizer.json: it has no model"),
    ({"file": "model.json"}, "is no usable tokenizer.json"),
    ({"file": "good.jsonl"}, "is not JSON"),
    ({"fil": "x"}, "Did you mean 'file'"),
    ("bpe", r"has to be told more; write \{bpe: …\}"),
]


@pytest.mark.parametrize("spec, says", BAD_TOKENIZERS, ids=lambda value: str(value)[:50])
def test_a_wrong_tokenizer_is_one_line_that_says_what_to_do(here, spec, says):
    with pytest.raises(UsageError, match=says) as caught:
        find_tokenizer(spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["../escape", "/etc/x", "a/b", "..", ".hidden", "a\0b", "x" * 99])
def test_no_name_leaves_the_storage_root(here, name):
    for spec in (
        {"folder": "texts", "name": name},
        {"mixture": {"sotu": 1, "stdlib": 1}, "name": name},
    ):
        with pytest.raises(UsageError, match="corpus name"):
            prepare(spec, "bytes", here / "root")
    Path("t.json").write_text("{}")
    with pytest.raises(UsageError, match="corpus name"):
        find_tokenizer({"file": "t.json", "name": name})
    assert sorted(path.name for path in (here / "root").iterdir()) == ["data"]


def test_a_link_does_not_pull_a_file_from_outside_into_a_corpus(here):
    secret = here / "secret.txt"
    secret.write_text("token")
    Path("texts/link.txt").symlink_to(secret)
    with pytest.raises(UsageError, match=r"link\.txt leads out of .*texts, to .*secret\.txt"):
        find_corpus({"folder": "texts"})


class _Trap:
    """Unpickled, it would leave a trace."""

    def __reduce__(self):
        return Path.touch, (Path("executed"),)


def test_a_pickle_is_no_tokenizer_and_is_not_loaded(here):
    Path("trap.json").write_bytes(pickle.dumps(_Trap()))
    with pytest.raises(UsageError, match=r"is not JSON .* never pickles"):
        find_tokenizer({"file": "trap.json"})
    assert not Path("executed").exists()


def test_the_script_of_a_dataset_is_not_run(here, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_DATASETS_TRUST_REMOTE_CODE", "1")
    folder = here / "scripted"
    folder.mkdir()
    trap = "from pathlib import Path\nPath('executed').touch()\n"
    (folder / "scripted.py").write_text(trap)
    with pytest.raises(UsageError, match="holds no data file"):
        prepare({"huggingface": "scripted"}, "bytes", here / "root")
    (folder / "train.jsonl").write_text('{"text": "a"}\n' * 40)
    with contextlib.suppress(UsageError):  # some versions read the data, others refuse the script
        prepare({"huggingface": "scripted"}, "bytes", here / "root")
    assert not Path("executed").exists()


@pytest.mark.parametrize("key", ["trust_remote_code", "trust"])
def test_nobody_can_ask_for_code_to_be_trusted(key):
    for kind in KINDS:
        with pytest.raises(UsageError):
            find_corpus({kind: "x/y", key: True})
    with pytest.raises(UsageError, match=f"unknown option '{key}'"):
        find_corpus({"huggingface": "x/y", "revision": COMMIT, key: True})


def test_a_manifest_cannot_name_files_outside_its_folder(here):
    manifest = prepare({"jsonl": "good.jsonl"}, "bytes", here / "root")
    path = manifest.folder / "manifest.json"
    content = json.loads(path.read_text())
    content["files"]["../../../secret"] = content["files"].pop("train.tokens")
    path.write_text(json.dumps(content))
    with pytest.raises(UsageError, match="names a file outside its folder"):
        load_manifest(here / "root", manifest.hash)


TAG = "!!python/object/apply:pathlib.Path.touch [executed]"


@pytest.mark.parametrize("value", [TAG, f"{{a: {TAG}}}"])
def test_yaml_on_the_command_line_makes_data_and_nothing_else(here, monkeypatch, capsys, value):
    command = ["arch-search", "--root", str(here / "root"), "data", "prepare", f"folder={value}"]
    monkeypatch.setenv("ARCH_SEARCH_ROOT", str(here / "root"))
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not Path("executed").exists()
