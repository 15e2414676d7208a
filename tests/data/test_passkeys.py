"""The corpus of passkeys: each document answers itself, whatever is made beside it."""

import re

import pytest

from arch_search.data.corpora import find_corpus
from arch_search.errors import UsageError

SPEC = {
    "passkeys": 60,
    "shortest": 24,
    "longest": 90,
    "task": {"digits": 2, "begin": "", "noise": "hay. ", "needle": "key {p}; ", "end": "key?"},
}


def test_every_passkey_stands_before_its_question():
    documents = list(find_corpus(SPEC).documents())
    assert len(documents) == 60
    keys = []
    for document in documents:
        text = document.text.decode()
        hidden = re.search(r"key (\d\d); ", text)
        assert text.endswith(f"key? {hidden[1]}")
        assert 18 <= len(text) <= 89  # and the end of document
        keys.append(hidden[1])
    assert len(set(keys)) > 25
    assert {d.split for d in documents} == {"train", "val", "test"}
    assert sum(d.split == "val" for d in documents) == 3


def test_further_questions_take_the_place_of_noise_and_have_the_same_answer():
    once, often = find_corpus(SPEC), find_corpus({**SPEC, "questions": 5})
    numbers = []
    for one, document in zip(once.documents(), often.documents(), strict=True):
        text = document.text.decode()
        head, *answered = text.split("key?")
        hidden = re.fullmatch(r"(hay\. )*key (\d\d); (hay\. )*", head)
        assert hidden is not None
        assert all(re.fullmatch(rf" {hidden[2]}(hay\. )*", part) for part in answered), text
        assert text.endswith(f"key? {hidden[2]}")
        assert f"key {hidden[2]}; " in one.text.decode()  # what is hidden does not change
        assert len(one.text) - 6 < len(text) <= len(one.text) + 5  # a block of noise at most
        numbers.append(len(answered))
    assert set(numbers) == {1, 2, 3, 4, 5}


def test_one_question_is_what_there_was_before():
    assert find_corpus({**SPEC, "questions": 1}).revision == find_corpus(SPEC).revision
    assert find_corpus({**SPEC, "questions": 2}).revision != find_corpus(SPEC).revision
    assert find_corpus(SPEC).revision == "1/fb2908c10eebaf56"


def test_documents_follow_from_their_number_and_the_revision_from_the_options():
    few, many = find_corpus(SPEC), find_corpus({**SPEC, "passkeys": 1_500})
    texts = [d.text for d in many.documents()]
    assert texts[:60] == [d.text for d in few.documents()]
    assert few.revision == find_corpus(dict(SPEC)).revision
    assert few.revision != many.revision != find_corpus({**SPEC, "longest": 91}).revision


def test_what_cannot_be_made_is_refused():
    with pytest.raises(UsageError, match=r"passkeys.shortest: 10 tokens have no room"):
        find_corpus({**SPEC, "shortest": 10})
    with pytest.raises(UsageError, match="expected 20 or more"):
        find_corpus({**SPEC, "passkeys": 3})
    with pytest.raises(UsageError, match="questions is 0"):
        find_corpus({**SPEC, "questions": 0})
    with pytest.raises(UsageError, match="digits"):
        find_corpus({**SPEC, "task": {"digit": 2}})
