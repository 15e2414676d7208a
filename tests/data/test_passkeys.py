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
    with pytest.raises(UsageError, match="digits"):
        find_corpus({**SPEC, "task": {"digit": 2}})
