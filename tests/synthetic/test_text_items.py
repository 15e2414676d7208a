"""Tasks written as text: each item is answered again by reading its prompt, not its generator."""

import re
from hashlib import sha256

import numpy as np
import pytest

from arch_search.data.tokenizers.byte_level import BYTES
from arch_search.model import IGNORED
from arch_search.synthetic.base import examples
from arch_search.synthetic.draws import Draws
from arch_search.synthetic.haystacks import sentences
from arch_search.synthetic.passkey import BEGIN, END, NEEDLE, NOISE
from arch_search.synthetic.registry import generator, read_task
from arch_search.synthetic.text import TextTask, largest

HAY = sentences(["It rained. It snowed! Did it hail?  No.\nThe wind blew hard that day."])
KINDS = ("S1", "S2", "S3", "MK", "MQ", "MV")
SMALL_KEY = {"begin": "", "needle": "#{p};", "noise": "no ", "end": "?", "digits": 2}


def items(name, options, *, length, count=40, start=0, hay=HAY):
    name, read = read_task({name: options})
    task = generator(name)
    assert isinstance(task, TextTask)
    draws = Draws(np.arange(start, start + count), name, "test")
    return task.items(draws, length, read, BYTES, lambda: hay)


def size(item):
    return 1 + len((item.prompt + item.said).encode())


def test_sentences_end_with_full_stops_and_marks():
    expected = ["It rained.", "It snowed!", "Did it hail?", "No.", "The wind blew hard that day."]
    assert expected == HAY


@pytest.mark.parametrize("most", range(6))
@pytest.mark.parametrize("limit", range(-1, 6))
def test_largest(most, limit):
    assert largest(most, lambda n: n <= limit) == min(most, limit)


def test_passkey_prompts_hold_the_published_parts_at_the_depth():
    length = 2_000
    found = items("passkey", {"depths": 10}, length=length, count=20)
    for i, item in enumerate(found):
        [key] = item.answers
        assert re.fullmatch(r"\d{5}", key)
        assert item.said == f" {key}"
        needle = NEEDLE.format(p=key)
        middle = item.prompt.removeprefix(BEGIN).removesuffix(END)
        before, after = middle.split(needle)
        blocks = (len(before) + len(after)) // len(NOISE) + 1
        assert before == NOISE * int((i % 10 + 0.5) / 10 * (blocks - 1))
        assert item.about["depth"] == (i % 10 + 0.5) / 10
        assert item.about["distance"] == len(after) + len(END)
        assert size(item) <= length < size(item) + len(NOISE)
    assert len({item.answers for item in found}) == 20


def test_passkeys_for_training_stand_anywhere():
    found = items("passkey", SMALL_KEY, length=64, count=200)
    depths = np.array([item.about["depth"] for item in found])
    assert 0.45 < depths.mean() < 0.55
    assert depths.min() < 0.05 < 0.95 < depths.max()
    assert all(re.fullmatch(r"(no )*#(\d\d);(no )*\?", item.prompt) for item in found)


@pytest.mark.parametrize("form", ["english", "small"])
@pytest.mark.parametrize("kind", KINDS)
def test_needles_answer_their_question(kind, form):
    length = 1_200 if form == "english" else 128
    for item in items("needles", {"kind": kind, "form": form}, length=length, count=12):
        if form == "english":
            facts = re.findall(r"One of the special magic \w+ for ([^:]+) is: (\S+)\.", item.prompt)
            question = item.prompt.rsplit("for ", 1)[1].split(" mentioned")[0]
            asked = re.split(r", and |, ", question)
            assert item.prompt.count(question) >= 2
            value = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}" if kind == "S3" else r"\d{7}"
        else:
            facts = re.findall(r"#(\w\w)=(\d+);", item.prompt)
            asked = item.prompt.rsplit("?", 1)[1].rstrip("=").split(",")
            value = r"\d{6}" if kind == "S3" else r"\d{3}"
        assert len(facts) == (4 if kind in ("MK", "MQ", "MV") else 1)
        assert len(asked) == (4 if kind == "MQ" else 1)
        expected = [v for a in asked for k, v in facts if k == a]
        assert list(item.answers) == expected
        assert len(expected) == (4 if kind in ("MQ", "MV") else 1)
        assert all(re.fullmatch(value, answer) for answer in expected)
        assert size(item) <= length
        assert size(item) > length - (110 if form == "english" else 2)


def test_needles_lie_at_other_places_and_do_not_break_sentences():
    found = items("needles", {"kind": "MK"}, length=1_200)
    depths = {item.about["depth"] for item in found}
    assert len(depths) > 15
    for item in found:
        body = item.prompt.split("\n")[1]
        body = re.sub(r"One of the special magic numbers for [^:]+ is: \d+\. ?", "", body)
        assert {s for s in sentences([body])} <= set(HAY)  # noqa: C416 (a set of them)


def test_boxes_are_emptied_and_filled_as_a_reader_would():
    for item in items("entity_tracking", {"boxes": 3}, length=600):
        held = {}
        for sentence in item.prompt.split(".")[:-1]:
            if match := re.search(r"Box (\d) holds the (\w+)$", sentence):
                held[match[1]] = match[2]
            elif match := re.search(r"Put the (\w+) into box (\d) instead$", sentence):
                held[match[2]] = match[1]
            else:
                match = re.search(r"Swap what is in box (\d) and box (\d)$", sentence)
                assert match
                a, b = match[1], match[2]
                assert a != b
                held[a], held[b] = held[b], held[a]
            assert len(set(held.values())) == len(held)
        asked = re.search(r"Box (\d) now holds the$", item.prompt)
        assert asked
        assert item.said == f" {held[asked[1]]}."
        assert 600 - 45 < size(item) <= 600


def test_programs_give_what_python_computes():
    for item in items("programs", {}, length=90):
        program, _, question = item.prompt.partition("print(")
        values: dict[str, int] = {}
        for line in program.splitlines():
            exec(line, {}, values)  # noqa: S102 (a=b+3)
            values = {name: value % 10 for name, value in values.items()}
        assert question == f"{question[0]})\n>"
        assert item.said == str(values[question[0]])
        assert 90 - 8 < size(item) <= 90


def test_as_bytes_the_answer_alone_is_asked_for():
    name, options = read_task({"passkey": SMALL_KEY})
    found = examples(
        generator(name), name, options,
        length=48, indices=np.arange(8), purpose="train", seed=0,
    )  # fmt: skip
    for tokens, targets in zip(found.tokens, found.targets, strict=True):
        places = np.flatnonzero(targets != IGNORED)
        said = bytes(targets[places].tolist())
        assert re.fullmatch(rb" \d\d", said)
        assert tokens[0] == 256
        assert tokens[places[0]] == ord("?")
        assert bytes(tokens[places[1:]].tolist()) == said[:-1]
        assert (tokens[places[-1] + 2 :] == 256).all()


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("passkey", {}, "no room for the passkey"),
        ("needles", {"kind": "MQ"}, "no room for the 4 needles"),
        ("entity_tracking", {}, "no room for 4 boxes"),
        ("programs", {"variables": 8}, "no room for 8 variables"),
    ],
)
def test_too_short_a_length_is_refused_and_never_left_without_a_haystack(name, options, said):
    name, read = read_task({name: options})
    with pytest.raises(ValueError, match=said):
        generator(name).check(read, 40)


# The first 32 items, as text.
TEXTS = {
    ("passkey", 600): "6f31aade878a81e7",
    ("needles", 900): "f6c56dc15042df4a",
    ("entity_tracking", 400): "030a262546d9e547",
    ("programs", 64): "6dd32ec5393dfad6",
}


@pytest.mark.parametrize(("name", "length"), TEXTS)
def test_sets_are_fixed(name, length):
    found = items(name, {}, length=length, count=32)
    text = "\n".join(item.prompt + item.said for item in found)
    assert sha256(text.encode()).hexdigest()[:16] == TEXTS[name, length]


@pytest.mark.parametrize(("name", "length"), TEXTS)
def test_an_item_does_not_depend_on_what_is_drawn_with_it(name, length):
    assert items(name, {}, length=length)[7:9] == items(name, {}, length=length, count=2, start=7)
