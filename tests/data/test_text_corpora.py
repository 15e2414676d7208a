"""Corpora of people's own text: one text, whatever holds it; held out, cut, filtered, mixed."""

import gzip
import json
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch_search.data import find_corpus, open_split, prepare
from arch_search.data.corpora.splitting import held_out
from arch_search.data.corpora.text import pieces

TEXTS = [f"Document {n}: naïve — M²RNN\n" + "word " * (n % 7) for n in range(60)]


@pytest.fixture
def jsonl(tmp_path):
    """The texts as JSON Lines."""
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": t, "kind": "odd"}) + "\n" for t in TEXTS))
    return path


def _write_folder(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        (folder / f"{number:03d}.txt").write_text(text)
    return {"folder": str(folder)}


def _write_gzip(tmp_path):
    with gzip.open(tmp_path / "texts.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in TEXTS)
    return {"jsonl": str(tmp_path / "texts.jsonl.gz")}


def _write_parquet(tmp_path):
    half = len(TEXTS) // 2
    for name, texts in (("a", TEXTS[:half]), ("b", TEXTS[half:])):
        pq.write_table(pa.table({"body": texts}), tmp_path / f"{name}.parquet")
    return {"parquet": str(tmp_path / "*.parquet"), "text": "body", "name": "texts"}


def _write_dataset(tmp_path):
    datasets = pytest.importorskip("datasets")
    folder = tmp_path / "texts"
    folder.mkdir()
    datasets.Dataset.from_dict({"text": TEXTS}).to_parquet(folder / "train.parquet")
    return {"huggingface": str(folder)}


@pytest.mark.parametrize("write", [_write_folder, _write_gzip, _write_parquet, _write_dataset])
def test_the_same_texts_are_the_same_documents_whatever_holds_them(write, tmp_path, jsonl):
    expected = list(find_corpus({"jsonl": str(jsonl)}).documents())
    (tmp_path / "other").mkdir()
    found = list(find_corpus(write(tmp_path / "other")).documents())
    assert [document.text.decode() for document in found] == TEXTS
    assert [document.split for document in found] == [document.split for document in expected]


def test_one_of_twenty_is_held_out_for_each_of_val_and_test(jsonl):
    counts = Counter(document.split for document in find_corpus({"jsonl": str(jsonl)}).documents())
    assert counts == {"train": 54, "val": 3, "test": 3}


@given(st.integers(0, 10_000), st.text(max_size=8))
def test_of_every_twenty_documents_one_goes_to_each_held_out_split(block, key):
    splits = Counter(held_out(20 * block + i, key) for i in range(20))
    assert splits == {"train": 18, "val": 1, "test": 1}


def test_a_copy_elsewhere_is_the_same_corpus_and_a_changed_text_is_another(tmp_path, jsonl):
    copy = tmp_path / "copy" / "texts.jsonl"
    copy.parent.mkdir()
    copy.write_bytes(jsonl.read_bytes())
    one = prepare({"jsonl": str(jsonl)}, "bytes", tmp_path / "root")
    assert prepare({"jsonl": str(copy)}, "bytes", tmp_path / "root") == one
    copy.write_bytes(jsonl.read_bytes().replace(b"Document 3:", b"Document X:"))
    assert prepare({"jsonl": str(copy)}, "bytes", tmp_path / "root").hash != one.hash


def test_folders_and_paths_that_are_splits_stay_splits(tmp_path):
    for split, n in (("train", 5), ("val", 2), ("test", 1)):
        (tmp_path / "t" / split).mkdir(parents=True)
        for number in range(n):
            (tmp_path / "t" / split / f"{number}.md").write_text(f"{split} {number}")
    corpus = find_corpus({"folder": str(tmp_path / "t"), "pattern": "**/*.md"})
    assert all(d.text.decode().startswith(d.split) for d in corpus.documents())
    lines = {}
    for split in ("train", "val"):
        lines[split] = str(tmp_path / f"{split}.jsonl")
        (tmp_path / f"{split}.jsonl").write_text(f'{{"text": "{split}"}}\n')
    corpus = find_corpus({"jsonl": lines})
    assert [(d.text.decode(), d.split) for d in corpus.documents()] == [
        ("train", "train"),
        ("val", "val"),
    ]


def test_splits_of_a_hub_dataset_keep_their_meaning(tmp_path):
    datasets = pytest.importorskip("datasets")
    for split in ("train", "validation", "test"):
        rows = datasets.Dataset.from_dict({"text": [f"{split} {n}" for n in range(4)]})
        rows.to_parquet(tmp_path / "set" / f"{split}.parquet")
    spec = {
        "huggingface": str(tmp_path / "set"),
        "split": {"train": "train", "val": "validation"},
        "documents": 3,
    }
    found = [(d.split, d.text.decode()) for d in find_corpus(spec).documents()]
    assert found == [("train", f"train {n}") for n in range(3)] + [
        ("val", f"validation {n}") for n in range(3)
    ]


def test_a_folder_in_the_hubs_layout_is_itself_whatever_its_name(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "train.jsonl").write_text('{"text": "a"}\n' * 40)
    assert len(list(find_corpus({"huggingface": "json"}).documents())) == 40


def test_documents_are_filtered_by_length(jsonl):
    spec = {"jsonl": str(jsonl), "min_bytes": 40, "max_bytes": 50}
    lengths = [len(d.text) for d in find_corpus(spec).documents()]
    expected = [len(t.encode()) for t in TEXTS if 40 <= len(t.encode()) <= 50]
    assert lengths == expected
    assert 0 < len(lengths) < len(TEXTS)


def test_a_named_corpus_is_filtered_in_its_own_splits():
    whole = {d.name: d for d in find_corpus("sotu").documents()}
    for document in find_corpus({"named": "sotu", "max_bytes": 30_000}).documents():
        assert whole[document.name] == document
        assert len(document.text) <= 30_000


@given(st.text(max_size=300), st.integers(1, 60))
def test_pieces_lose_nothing_and_cut_no_character(text, limit):
    parts = list(pieces(text.encode(), limit))
    assert b"".join(parts) == text.encode()
    assert all(len(part) <= max(limit, 4) and part.decode() for part in parts)


def test_one_long_file_can_be_cut_into_documents(tmp_path):
    (tmp_path / "input.txt").write_text("".join(f"line {n}\n" for n in range(3000)))
    corpus = find_corpus({"folder": str(tmp_path), "cut_every": 500})
    documents = list(corpus.documents())
    assert len(documents) > 40
    assert {d.split for d in documents} == {"train", "val", "test"}
    assert b"".join(d.text for d in documents) == (tmp_path / "input.txt").read_bytes()
    assert all(d.text.endswith(b"\n") for d in documents)


def test_a_mixture_holds_its_shares_from_the_start_and_repeats_nothing():
    spec = {"mixture": {"sotu": 3, "stdlib": 1}}
    documents = [d for d in find_corpus(spec).documents() if d.split == "train"]
    assert len({d.name for d in documents}) == len(documents)
    longest = max(len(d.text) for d in documents)
    seen = Counter()
    for document in documents:
        seen[document.stratum] += len(document.text)
        total = sum(seen.values())
        assert abs(seen["sotu"] - 0.75 * total) <= 2 * longest
    assert abs(seen["sotu"] / total - 0.75) < 0.01


def test_a_mixture_may_hold_corpora_with_options(tmp_path, jsonl):
    spec = {
        "mixture": [
            {"corpus": {"jsonl": str(jsonl), "name": "mine", "licence": "CC0-1.0"}, "weight": 1},
            {"corpus": "stdlib", "weight": 1},
        ],
        "name": "both",
    }
    manifest = prepare(spec, "bytes", tmp_path / "root")
    assert manifest.corpus == "both"
    assert "mine: CC0-1.0" in manifest.licence
    assert {r.stratum for r in open_split(manifest, "train").records} == {"mine", "stdlib"}


def test_the_standard_library_is_code_held_out_by_module():
    documents = list(find_corpus("stdlib").documents())
    assert {d.split for d in documents} == {"train", "val", "test"}
    assert any(d.name == "json/decoder.py" and b"class JSONDecoder" in d.text for d in documents)
    assert not any("test" in d.name.split("/") for d in documents)
