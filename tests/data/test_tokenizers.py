"""Tokenizers beyond bytes: trained here, read from a file, cl100k. Each gives the text back."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch_search.data import StreamHash, TrainingStream, find_tokenizer, open_split, prepare
from arch_search.data.spellings import spellings_of
from arch_search.data.tokenizers.byte_level import BYTES
from arch_search.errors import UsageError

tokenizers = pytest.importorskip("tokenizers")


@pytest.fixture(scope="session")
def bpe(data_root):
    """`sotu` with a BPE of 600 tokens trained on it."""
    return prepare("sotu", {"bpe": 600, "train_bytes": 2_000_000}, data_root)


@pytest.fixture(scope="session")
def trained(bpe):
    """The tokenizer that was trained, read back from where it was kept."""
    return find_tokenizer({"file": str(bpe.folder / "tokenizer.json"), "name": "sotu-600"})


def test_a_trained_bpe_spells_the_corpus_with_fewer_tokens(bpe, manifest):
    assert (bpe.vocabulary, bpe.tokenizer, bpe.token_type) == (600, "bpe-600", "uint16")
    spellings = spellings_of(bpe)
    assert {bytes([byte]) for byte in range(256)} <= set(spellings)
    assert bpe.splits["train"].tokens < 0.6 * manifest.splits["train"].tokens
    for name in ("train", "val"):
        mine, whole = open_split(bpe, name), open_split(manifest, name)
        for index in range(min(mine.documents, 20)):
            text = b"".join(spellings[token] for token in mine.document(index))
            assert text == bytes(whole.document(index).tolist())


def test_the_hash_of_text_does_not_depend_on_the_tokenizer(bpe, manifest):
    texts = set()
    for prepared in (bpe, manifest):
        split = open_split(prepared, "val")
        stream = TrainingStream(split, sequence_length=1, batch=len(split.tokens), seed=0)
        seen = StreamHash(stream)
        seen.update(0, stream.batch(0))
        texts.add(seen.text)
    assert len(texts) == 1


TRAIN = """
import sys
from arch_search.data import find_corpus, find_tokenizer
texts = [d.text for d in find_corpus("sotu").documents()][:40]
recipe = find_tokenizer({"bpe": 700})
sys.stdout.buffer.write(recipe.train(iter(texts), "x").source)
"""


def test_training_again_gives_the_same_tokenizer_whatever_the_threads():
    made = [
        subprocess.run(
            [sys.executable, "-c", TRAIN],
            env={**os.environ, "RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "true"},
            capture_output=True,
            check=True,
        ).stdout
        for threads in ("1", "2", "5")
    ]
    assert made[0] == made[1] == made[2]
    assert json.loads(made[0])["model"]["type"] == "BPE"


def test_it_is_trained_on_the_training_split_alone(bpe, data_root, tmp_path):
    lines = [("train", "aaaa bbbb " * 50), ("val", "zqzq zqzq " * 500)]
    for split, text in lines:
        (tmp_path / f"{split}.jsonl").write_text(json.dumps({"text": text}) + "\n")
    places = {split: str(tmp_path / f"{split}.jsonl") for split, _ in lines}
    made = prepare({"jsonl": places, "name": "two"}, {"bpe": 300}, tmp_path / "root")
    spelt = spellings_of(made)
    assert b"aaaa" in spelt
    assert not any(b"zq" in spelling for spelling in spelt)


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=200))
def test_any_text_comes_back_from_any_tokenizer(trained, text):
    for tokenizer in (trained, find_tokenizer("cl100k"), find_tokenizer("bytes")):
        tokens = tokenizer.encode(text.encode())
        assert b"".join(tokenizer.spellings[t] for t in tokens) == text.encode()
        assert tokenizer.end_of_document not in tokens


@pytest.mark.parametrize("name", ["trained", "cl100k"])
def test_text_that_looks_like_an_end_of_document_is_text(name, trained):
    tokenizer = trained if name == "trained" else find_tokenizer(name)
    text = b"one <|endoftext|> two"
    tokens = tokenizer.encode(text)
    assert tokenizer.end_of_document not in tokens
    assert b"".join(tokenizer.spellings[t] for t in tokens) == text


def test_cl100k_is_the_known_one_and_needs_wide_tokens(tmp_path):
    pytest.importorskip("bpe_openai")
    tokenizer = find_tokenizer("cl100k")
    assert tokenizer.encode(b"hello world").tolist() == [15339, 1917]
    assert tokenizer.vocabulary == 100277
    (tmp_path / "t").mkdir()
    for n in range(40):
        (tmp_path / "t" / f"{n}.txt").write_text(f"document {n} ﷽")
    manifest = prepare({"folder": str(tmp_path / "t")}, "cl100k", tmp_path / "root")
    split = open_split(manifest, "train")
    assert split.tokens.dtype == np.uint32
    assert (split.tokens[split.offsets[1:] - 1] == tokenizer.end_of_document).all()
    stream = TrainingStream(split, sequence_length=8, batch=2, seed=0)
    assert stream.batch(0).max() < 100277


def _lossy(tmp_path):
    encoder = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    encoder.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path / "words.json"
    encoder.save(str(path))
    return path


def test_a_tokenizer_that_loses_text_is_refused_with_the_document_and_the_place(tmp_path):
    with pytest.raises(UsageError, match=r"'1790-Washington-1': .* does not give the text back"):
        prepare("sotu", {"file": str(_lossy(tmp_path))}, tmp_path / "root")


def test_a_normaliser_of_unicode_does_not_change_text(tmp_path, trained):
    content = json.loads(trained.source)
    content["normalizer"] = {"type": "NFC"}
    path = tmp_path / "nfc.json"
    path.write_text(json.dumps(content))
    tokenizer = find_tokenizer({"file": str(path)})
    text = "e\u0301".encode()  # which NFC would make one character
    assert b"".join(tokenizer.spellings[t] for t in tokenizer.encode(text)) == text


def test_an_end_of_document_can_be_chosen_or_is_added(tmp_path, trained):
    path = tmp_path / "tokenizer.json"
    content = json.loads(trained.source)
    content["added_tokens"][0]["content"] = "<stop>"
    content["model"]["vocab"]["<stop>"] = content["model"]["vocab"].pop("<|endoftext|>")
    path.write_text(json.dumps(content))
    assert find_tokenizer({"file": str(path)}).end_of_document == 600  # a token of its own
    chosen = find_tokenizer({"file": str(path), "end_of_document": "<stop>"})
    assert chosen.end_of_document == 0
    with pytest.raises(UsageError, match=r"no special token '<stp>'.*Did you mean '<stop>'"):
        find_tokenizer({"file": str(path), "end_of_document": "<stp>"})


def test_what_a_model_says_is_decoded_whatever_it_is():
    text = "Grüße".encode()
    assert BYTES.decode(list(text)) == "Grüße"
    assert BYTES.decode(list(text[:3])) == "Gr�"  # a character cut in half
    assert BYTES.decode([71, 256, 300]) == "G�"  # the end of a document; a row that only fills up
