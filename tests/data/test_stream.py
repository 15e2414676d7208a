"""One order of tokens, whatever the workers, the micro-batches, the restarts."""

import threading
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch_search.data import (
    StreamHash,
    TrainingStream,
    first_difference,
    loader,
    open_split,
    prepare,
)
from arch_search.data.shards import Split
from arch_search.errors import UsageError

few = settings(max_examples=60, deadline=None)


def _cut(split: Split, documents: int) -> Split:
    """The first documents of a split, as a split of its own."""
    return replace(
        split,
        tokens=split.tokens[: split.offsets[documents]],
        offsets=split.offsets[: documents + 1],
        records=split.records[:documents],
    )


@pytest.fixture(scope="session")
def small(train) -> Split:
    """Three documents: 31 K tokens, an epoch in no time."""
    return _cut(train, 3)


def _hash(stream: TrainingStream, steps: range, state=None) -> StreamHash:
    stream_hash = StreamHash.from_state(stream, state) if state else StreamHash(stream)
    for step in steps:
        stream_hash.update(step, stream.batch(step))
    return stream_hash


@few
@given(length=st.integers(1, 700), seed=st.integers(0, 9), epoch=st.integers(0, 3))
def test_every_token_is_a_target_once_an_epoch_up_to_the_ragged_end(small, length, seed, epoch):
    stream = TrainingStream(small, sequence_length=length, batch=1, seed=seed)
    windows = stream.windows_per_epoch
    rows = TrainingStream(small, sequence_length=length, batch=windows, seed=seed)
    targets = (rows.starts(epoch)[:, None] + 1 + np.arange(length)) % len(small.tokens)
    seen = np.bincount(targets.ravel(), minlength=len(small.tokens))
    assert seen.max() == 1
    assert 0 <= (seen == 0).sum() == len(small.tokens) - windows * length < length


@few
@given(length=st.integers(1, 700), batch=st.integers(1, 9), seed=st.integers(0, 9))
def test_a_batch_is_its_windows(small, length, batch, seed):
    stream = TrainingStream(small, sequence_length=length, batch=batch, seed=seed)
    tokens = stream.batch(5)
    assert (tokens.shape, tokens.dtype) == ((batch, length + 1), np.int64)
    ring = np.concatenate([small.tokens, small.tokens])
    for start, row in zip(stream.starts(5), tokens, strict=True):
        assert np.array_equal(row, ring[start : start + length + 1])


@few
@given(batch=st.integers(1, 12), pieces=st.integers(1, 12), step=st.integers(0, 400))
def test_rows_come_in_one_order_whatever_the_batch(small, batch, pieces, step):
    whole = TrainingStream(small, sequence_length=64, batch=batch * pieces, seed=3)
    piece = TrainingStream(small, sequence_length=64, batch=batch, seed=3)
    parts = [piece.batch(step * pieces + index) for index in range(pieces)]
    assert np.array_equal(whole.batch(step), np.concatenate(parts))


def test_a_stream_is_equal_in_another_process_at_any_step(small):
    one = TrainingStream(small, sequence_length=128, batch=8, seed=0)
    other = TrainingStream(small, sequence_length=128, batch=8, seed=0)
    expected = [one.batch(step) for step in range(100)]
    for step in (99, 3, 50, 0):  # several epochs apart, in no order
        assert np.array_equal(other.batch(step), expected[step])


def test_seed_epoch_and_data_each_change_the_order(small, train):
    def starts(split, seed, step):
        return tuple(TrainingStream(split, sequence_length=128, batch=8, seed=seed).starts(step))

    epoch = TrainingStream(small, sequence_length=128, batch=8, seed=0).windows_per_epoch
    other = replace(small, manifest=replace(small.manifest, corpus_revision="another"))
    orders = {
        starts(small, 0, 0),
        starts(small, 1, 0),
        starts(other, 0, 0),
        starts(small, 0, epoch),
    }
    assert len(orders) == 4


def test_rows_of_a_batch_are_neighbours_only_by_chance(train):
    stream = TrainingStream(train, sequence_length=128, batch=64, seed=0)
    starts = np.array([stream.starts(step) for step in range(1000)])
    gaps = np.abs(starts[:, :, None] - starts[:, None, :])[:, *np.triu_indices(64, 1)]
    expected = 1000 * (64 * 63 / 2) * 2 / stream.windows_per_epoch
    assert abs((gaps == 128).sum() - expected) < 5 * np.sqrt(expected)


def test_sizes_that_cannot_be_are_refused(small):
    with pytest.raises(UsageError, match="at least 1, not 0 and 8"):
        TrainingStream(small, sequence_length=0, batch=8, seed=0)
    with pytest.raises(UsageError, match="32532 tokens, too few for a sequence_length of 1000000"):
        TrainingStream(small, sequence_length=1_000_000, batch=8, seed=0)


def test_a_resumed_hash_equals_an_uninterrupted_one(small):
    stream = TrainingStream(small, sequence_length=128, batch=8, seed=0)
    whole = _hash(stream, range(100))  # three epochs
    half = _hash(stream, range(37))
    resumed = _hash(stream, range(37, 100), half.state())
    assert resumed.state() == whole.state()
    assert half.state() != whole.state()


def test_a_step_out_of_turn_is_refused(small):
    stream = TrainingStream(small, sequence_length=128, batch=8, seed=0)
    stream_hash = _hash(stream, range(3))
    for step in (2, 4):
        with pytest.raises(ValueError, match=f"expects step 3 next, not step {step}"):
            stream_hash.update(step, stream.batch(step))


@few
@given(row=st.integers(0, 7), place=st.integers(0, 128), step=st.integers(0, 4))
def test_any_token_changes_the_hash_of_tokens_and_any_target_that_of_text(small, row, place, step):
    stream = TrainingStream(small, sequence_length=128, batch=8, seed=0)
    true, changed = StreamHash(stream), StreamHash(stream)
    for now in range(5):
        batch = stream.batch(now)
        true.update(now, batch)
        if now == step:
            batch[row, place] = (batch[row, place] + 1) % 256
        changed.update(now, batch)
    assert changed.tokens != true.tokens
    assert (changed.text == true.text) is (place == 0)  # the first is another row's target


def test_the_order_changes_the_hash_of_tokens_alone(small):
    stream = TrainingStream(small, sequence_length=128, batch=8, seed=0)
    epoch = len(small.tokens) // 128
    every = TrainingStream(small, sequence_length=128, batch=epoch, seed=0)
    by_rows = _hash(TrainingStream(small, sequence_length=128, batch=1, seed=0), range(epoch))
    at_once = _hash(every, range(1))
    assert by_rows.text == at_once.text
    assert by_rows.tokens != at_once.tokens
    assert _hash(stream, range(epoch // 8)).text != at_once.text


def _covering(split: Split, lengths: list[int]) -> dict[int, str]:
    """Text hashes of an epoch that leaves nothing over, for each sequence length."""
    texts = {}
    for length in lengths:
        assert len(split.tokens) % length == 0
        windows = len(split.tokens) // length
        stream = TrainingStream(split, sequence_length=length, batch=windows, seed=length)
        texts[length] = _hash(stream, range(1)).text
    return texts


def test_the_hash_of_text_is_apart_from_window_and_seed(small):
    tokens = len(small.tokens)
    lengths = [n for n in range(1, tokens // 2) if tokens % n == 0]
    assert len(lengths) >= 3, "choose documents whose length has divisors"
    texts = _covering(small, lengths)
    assert len(set(texts.values())) == 1
    text = next(iter(texts.values()))
    assert int(text[16:], 16) == tokens - small.documents  # its bytes: no separator counts


PAIRS = """
import numpy as np
from arch_search.data.tokenizers import Tokenizer

SPELLINGS = tuple(bytes([v]) for v in range(256)) + (b"th", b"e ", b"", b"in", b"and ")
BY_LENGTH = sorted((s for s in SPELLINGS if s), key=len, reverse=True)

def encode(text):
    tokens, place = [], 0
    while place < len(text):
        spelling = next(s for s in BY_LENGTH if text.startswith(s, place))
        tokens.append(SPELLINGS.index(spelling))
        place += len(spelling)
    return np.array(tokens, np.uint16)

PAIRS = Tokenizer(
    name="pairs", summary="some pairs", end_of_document=258, spellings=SPELLINGS, encode=encode
)
"""

SHORT = """
from dataclasses import replace
from arch_search.data.corpora.sotu import SOTU

def documents():
    for document in list(SOTU.documents())[:3]:
        yield replace(document, split="train", text=document.text[:3000])

SHORT = replace(SOTU, name="short", revision="3 documents", documents=documents)
"""


def test_the_hash_of_text_is_apart_from_the_tokenizer(tmp_path, monkeypatch):
    (tmp_path / "pairs_tokenizer.py").write_text(PAIRS)
    (tmp_path / "short_corpus.py").write_text(SHORT)
    monkeypatch.syspath_prepend(tmp_path)
    tokenizers = "arch_search.data.tokenizers.TOKENIZERS"
    monkeypatch.setitem(_named(tokenizers), "pairs", "pairs_tokenizer:PAIRS")
    monkeypatch.setitem(_named("arch_search.data.corpora.CORPORA"), "short", "short_corpus:SHORT")
    states = {}
    for tokenizer in ("bytes", "pairs"):
        split = open_split(prepare("short", tokenizer, tmp_path), "train")
        stream = TrainingStream(split, sequence_length=1, batch=7, seed=0)
        rows = len(split.tokens)
        assert rows % 7 != 0  # the last step would begin a second epoch
        whole = _hash(TrainingStream(split, sequence_length=1, batch=rows, seed=1), range(1))
        states[tokenizer] = (rows, whole.text, _hash(stream, range(3)).text)
    assert states["bytes"][0] > states["pairs"][0]
    assert states["bytes"][1] == states["pairs"][1]
    assert states["bytes"][2] != states["pairs"][2]


def _named(path: str) -> dict:
    module, _, name = path.rpartition(".")
    return getattr(__import__(module, fromlist=[name]), name)


def test_the_first_difference_is_found(small):
    def stream(split):
        return TrainingStream(split, sequence_length=128, batch=8, seed=0)

    assert first_difference(stream(small), stream(small), steps=50) is None
    changed = np.array(small.tokens)
    place = stream(small).starts(20)[3] + 64
    changed[place % len(changed)] = 0
    other = replace(small, tokens=changed)
    assert first_difference(stream(small), stream(other), steps=50) == 20


@pytest.mark.parametrize("first", [0, 41])
def test_workers_change_nothing(small, first):
    stream = TrainingStream(small, sequence_length=128, batch=8, seed=0)
    alone = list(loader(stream, first_step=first, last_step=90, workers=0))
    assert [step for step, _ in alone] == list(range(first, 90))
    for workers in (1, 2, 3):
        helped = list(loader(stream, first_step=first, last_step=90, workers=workers))
        assert [step for step, _ in helped] == [step for step, _ in alone]
        assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(alone, helped, strict=True))


def _loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("loader")]


class _Failing(TrainingStream):
    """Reads well until a page cannot be read."""

    def batch(self, step):
        if step == 7:
            raise OSError("cannot read step 7")
        return super().batch(step)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_reaches_the_caller_at_its_step_and_ends_the_threads(small, workers):
    stream = _Failing(small, sequence_length=128, batch=8, seed=0)
    batches = loader(stream, first_step=0, last_step=20, workers=workers)
    assert [step for step, _ in islice(batches, 7)] == list(range(7))
    with pytest.raises(OSError, match="cannot read step 7"):
        next(batches)
    assert _loader_threads() == []


def test_closing_a_loader_ends_its_threads(small):
    stream = TrainingStream(small, sequence_length=128, batch=8, seed=0)
    batches = loader(stream, first_step=0, last_step=10_000, workers=2)
    next(batches)
    assert len(_loader_threads()) == 2
    batches.close()
    assert _loader_threads() == []


def test_a_negative_number_of_workers_is_refused(small):
    stream = TrainingStream(small, sequence_length=128, batch=8, seed=0)
    with pytest.raises(UsageError, match="0 or more, not -1"):
        loader(stream, first_step=0, last_step=1, workers=-1)
