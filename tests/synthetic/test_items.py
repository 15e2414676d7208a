"""Synthetic tasks: each definition by hand-made cases and by an independent computation."""

import itertools
from collections import Counter
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch_search.errors import UsageError
from arch_search.model import IGNORED
from arch_search.synthetic.base import examples
from arch_search.synthetic.draws import Draws
from arch_search.synthetic.groups import group
from arch_search.synthetic.mad_score import mad_scores
from arch_search.synthetic.mqar import distinct
from arch_search.synthetic.registry import GENERATORS, generator, read_task

# A task with its length; the hash of its first 32 training and evaluation items, seed 3.
SETS = {
    "state_tracking": ({"group": "S5"}, 32, "3265fe6f91e4bb67"),
    "swaps": ({"group": "S5", "moved": 2}, 32, "a15b9ada3ef47115"),
    "packed": ({"group": "S3", "packed": 4}, 32, "210df32c5a934159"),
    "repeated": ({"group": "A5", "repeat": 3, "filler": "special"}, 32, "dda66627219f1fdd"),
    "final_product": ({"group": "S3"}, 32, "7f238cd57bbcde0c"),
    "modular_arithmetic": ({}, 32, "4667d491a784e31a"),
    "brackets": ({"brackets": True}, 34, "f1fb24482ac02349"),
    "mqar": ({"vocabulary": 256, "pairs": 8}, 64, "bd66b329f73a920e"),
    "forgetting": ({"vocabulary": 256, "pairs": 8, "rewritten": 4}, 64, "59070f9dfe1c4812"),
    "in_context_recall": ({}, 64, "3ba683d9950592db"),
    "noisy": ({"vocabulary": 32, "noise_vocabulary": 16, "noise": 0.2}, 64, "6ffa83dd852b3f0d"),
    "fuzzy_recall": ({}, 64, "426cd9e1a787778a"),
    "selective_copying": ({}, 64, "17e3673a28cc378c"),
    "compression": ({}, 32, "cc007eb9506e0ccc"),
    "memorization": ({}, 32, "c83fe8c2eec9fcb5"),
}
NAMES = {"swaps": "state_tracking", "packed": "state_tracking", "repeated": "state_tracking",
         "brackets": "modular_arithmetic", "forgetting": "mqar",
         "noisy": "in_context_recall"}  # fmt: skip


def items(name, options, *, length, count=256, purpose="evaluate", seed=3, start=0):
    name, read = read_task({name: options})
    generator(name).check(read, length)
    indices = np.arange(start, start + count)
    return examples(
        generator(name), name, read, length=length, indices=indices, purpose=purpose, seed=seed
    )


def drawn(case, **more):
    options, length, _ = SETS[case]
    return items(NAMES.get(case, case), options, length=length, **more)


@pytest.mark.parametrize("case", SETS)
def test_sets_are_fixed(case):
    """Also on other versions of NumPy: results that were published must be found again."""
    digest = sha256()
    for purpose in ("train", "evaluate"):
        found = drawn(case, count=32, purpose=purpose)
        digest.update(found.tokens.astype("<i4").tobytes())
        digest.update(found.targets.astype("<i4").tobytes())
    assert digest.hexdigest()[:16] == SETS[case][2]


def test_every_registered_task_is_among_the_fixed_sets():
    written = {"entity_tracking", "needles", "passkey", "programs"}  # in test_text_items.py
    assert set(GENERATORS) == (set(SETS) - set(NAMES)) | written


@pytest.mark.parametrize("case", SETS)
def test_an_item_does_not_depend_on_what_is_drawn_with_it(case):
    together = drawn(case, count=40)
    alone = drawn(case, count=3, start=17)
    assert (together.tokens[17:20] == alone.tokens).all()
    assert (together.targets[17:20] == alone.targets).all()


@pytest.mark.parametrize("case", SETS)
def test_training_and_evaluation_share_no_item_and_fit_the_vocabulary(case):
    name, options = read_task({NAMES.get(case, case): SETS[case][0]})
    train, test = (drawn(case, count=64, purpose=p) for p in ("train", "evaluate"))
    rows = {row.tobytes() for row in train.tokens}
    assert not any(row.tobytes() in rows for row in test.tokens) or case == "modular_arithmetic"
    size = generator(name).vocabulary(options)
    for found in (train, test):
        assert found.tokens.min() >= 0
        assert max(found.tokens.max(), found.targets.max()) < size
        assert found.asked.any(axis=1).all()


def test_draws_are_uniform_and_apart():
    draws = Draws(np.arange(20_000), "key")
    numbers = draws.integers(6, 5)
    counts = np.bincount(numbers.ravel(), minlength=6)
    assert ((counts - 1e5 / 6) ** 2 / (1e5 / 6)).sum() < 20.5  # chi-squared, 5 df, 0.1 %
    assert abs(np.corrcoef(numbers[:, 0], numbers[:, 1])[0, 1]) < 0.025
    assert abs(draws.uniform(5).mean() - 0.5) < 0.005
    orders = draws.orders(4)
    assert (np.sort(orders, axis=1) == np.arange(4)).all()
    assert len(Counter(map(tuple, orders.tolist()))) == 24
    assert (Draws(np.arange(9), "a").words(3) != Draws(np.arange(9), "b").words(3)).all()


@given(st.integers(1, 12), st.integers(0, 400))
@settings(max_examples=40, deadline=None)
def test_distinct_numbers(count, more):
    found = distinct(Draws(np.arange(16), "distinct"), count + more, count)
    assert found.shape == (16, count)
    assert found.max() < count + more
    assert all(len(set(row)) == count for row in found.tolist())


@pytest.mark.parametrize(
    ("name", "order", "abelian"),
    [("S3", 6, False), ("S4", 24, False), ("S5", 120, False), ("A5", 60, False), ("Z60", 60, True),
     ("A4xZ5", 60, False), ("Z2", 2, True), ("Z2xZ2", 4, True)],
)  # fmt: skip
def test_groups(name, order, abelian):
    found = group(name)
    table = found.table
    assert table.shape == (order, order)
    everything = np.arange(order)
    assert (table[0] == everything).all()
    assert (table[:, 0] == everything).all()  # 0 is the identity
    assert (np.sort(table, axis=1) == everything).all()  # every element has an inverse
    a, b, c = np.random.default_rng(0).integers(order, size=(3, 500))
    assert (table[table[a, b], c] == table[a, table[b, c]]).all()
    assert (table == table.T).all() == abelian
    inverses = table.argmin(axis=1)  # where a·b = 0
    word = np.random.default_rng(1).integers(order, size=20)
    product = 0
    for element in [*word, *inverses[word][::-1]]:
        product = table[product, element]
    assert product == 0


def test_a5_is_the_even_permutations_and_swaps_move_two_points():
    assert sorted(group("A5").moved)[:2] == [0, 3]  # no transposition is even
    assert Counter(group("S5").moved.tolist())[2] == 10
    found = drawn("swaps")
    assert set(np.unique(group("S5").moved[found.tokens])) == {0, 2}
    assert len(np.unique(found.tokens)) == 11
    assert len(np.unique(found.targets)) == 120


def test_word_problems_equal_products_of_permutation_matrices():
    found = items("state_tracking", {"group": "S4"}, length=12, count=8)
    elements = list(itertools.permutations(range(4)))
    matrices = np.stack([np.eye(4, dtype=int)[list(p)] for p in elements])  # row i: where i goes
    for word, answers in zip(found.tokens, found.targets, strict=True):
        product = np.eye(4, dtype=int)
        for x, y in zip(word, answers, strict=True):
            product = product @ matrices[x]
            assert (product == matrices[y]).all()


def test_parity_is_the_sum_modulo_two():
    found = items("state_tracking", {"group": "Z2"}, length=40, count=8)
    assert (found.targets == found.tokens.cumsum(axis=1) % 2).all()


@pytest.mark.parametrize("name", ["Z2", "S3"])
def test_a_final_product_is_asked_for_once_after_the_last_element(name):
    found = items("final_product", {"group": name, "shortest": 2}, length=12)
    order, lengths = group(name).order, Counter()
    for tokens, targets in zip(found.tokens, found.targets, strict=True):
        [place] = np.flatnonzero(targets != IGNORED)
        assert tokens[place] == order + 1
        assert (tokens[place + 1 :] == 0).all()
        elements = (tokens[:place] - 1).tolist()
        if name == "Z2":
            assert targets[place] - 1 == sum(elements) % 2
        else:
            permutations = list(itertools.permutations(range(3)))
            where = list(range(3))
            for element in elements:  # where each point goes, one permutation after the other
                where = [permutations[element][point] for point in where]
            assert permutations[targets[place] - 1] == tuple(where)
        lengths[int(place)] += 1
    assert set(lengths) == set(range(2, 12))
    assert max(lengths.values()) < 60  # of 256, 25.6 expected


def test_a_shorter_item_is_the_beginning_of_a_longer_one():
    long = items("state_tracking", {"group": "A5"}, length=64)
    short = items("state_tracking", {"group": "A5"}, length=16)
    assert (long.tokens[:, :16] == short.tokens).all()
    assert (long.targets[:, :16] == short.targets).all()


def test_repeated_and_packed_elements():
    plain = items("state_tracking", {"group": "S3"}, length=8)
    same = items("state_tracking", {"group": "S3", "repeat": 2}, length=16)
    assert (same.tokens[:, ::2] == plain.tokens).all()
    assert (same.tokens[:, 1::2] == plain.tokens).all()
    special = items("state_tracking", {"group": "S3", "repeat": 2, "filler": "special"}, length=16)
    assert (special.tokens[:, 1::2] == 6).all()
    for found in (same, special):
        assert (found.targets[:, 1::2] == plain.targets).all()
        assert (found.targets[:, ::2] == IGNORED).all()
    packed = items("state_tracking", {"group": "S3", "packed": 4}, length=8)
    digits = [[token // 6**i % 6 for token in row[::4] for i in range(4)] for row in packed.tokens]
    assert [d[:4] for d in digits] == plain.tokens[:, :4].tolist()
    assert (np.delete(packed.tokens, [0, 4], axis=1) == 0).all()
    assert (packed.targets[:, 3:8] == plain.targets[:, :5]).all()  # three tokens late


@pytest.mark.parametrize("case", ["modular_arithmetic", "brackets"])
def test_python_finds_the_same_values(case):
    found = drawn(case)
    signs = {6: "+", 7: "-", 8: "*", 9: "", 10: "(", 11: ")", 0: ""}
    lengths = set()
    for tokens, targets in zip(found.tokens, found.targets, strict=True):
        text = "".join(signs[t] if t in signs else str(t - 1) for t in tokens.tolist())
        [place] = np.flatnonzero(targets != IGNORED)
        assert tokens[place] == 9
        assert (tokens[place + 1 :] == 0).all()
        assert targets[place] - 1 == eval(text) % 5  # noqa: S307 (digits, signs, brackets)
        lengths.add(int(place) + 1)
    assert min(lengths) >= 3
    assert max(lengths) > 25
    assert len(lengths) > 6


@pytest.mark.parametrize("case", ["mqar", "forgetting"])
def test_mqar_asks_for_the_last_value_of_each_key_once(case):
    found = drawn(case)
    pairs, rewritten = 8, 4 * (case == "forgetting")
    context = 2 * (pairs + rewritten)
    slots = []
    for tokens, targets in zip(found.tokens, found.targets, strict=True):
        last = dict(zip(tokens[:context:2].tolist(), tokens[1:context:2].tolist(), strict=True))
        assert len(last) == pairs
        assert len(set(tokens[1:context:2].tolist())) == pairs + rewritten
        places = np.flatnonzero(targets != IGNORED)
        assert (places >= context).all()
        assert (places % 2 == 0).all()
        assert dict(zip(tokens[places], targets[places], strict=True)) == last
        assert max(last) < 128 <= min(last.values())
        slots += ((places - context) // 2).tolist()
    counts = np.bincount(slots, minlength=(64 - context) // 2)
    assert counts[0] > counts[4] > counts[12]  # most stand right after the context


def test_mqar_slots_are_drawn_one_after_the_other_without_replacement():
    """Against the probabilities of NumPy's weighted choice, which Zoology uses."""
    found = items("mqar", {"vocabulary": 64, "pairs": 2}, length=16, count=20_000)
    first = (found.tokens[:, [0]] == found.tokens[:, 4::2]) & found.asked[:, 4::2]
    weight = np.arange(1, 7) ** -0.99
    expected = weight / weight.sum()
    seen = first.mean(axis=0) / first.any(axis=1).mean()
    assert np.abs(seen - expected).max() < 0.012


def test_recall_trains_on_every_next_token_and_asks_for_keys_seen_before():
    for case in ("in_context_recall", "noisy", "fuzzy_recall"):
        train = drawn(case, purpose="train")
        text = train.targets[:, :-1] != IGNORED
        assert (train.targets[:, :-1][text] == train.tokens[:, 1:][text]).all()
        assert text.all() == (case != "fuzzy_recall")  # which is padded on the left
    for case in ("in_context_recall", "noisy"):
        found = drawn(case)
        for tokens, targets in zip(found.tokens, found.targets, strict=True):
            values: dict[int, int] = {}
            for place in range(0, 64, 2):
                key, value = tokens[place : place + 2].tolist()
                if key >= 16:
                    assert case == "noisy"
                    assert value >= 16
                    assert targets[place] == IGNORED
                    continue
                assert 8 <= value < 16
                assert targets[place] == values.get(key, IGNORED)
                assert values.setdefault(key, value) == value
            assert targets[62] != IGNORED  # the last pair repeats a key
    share = (drawn("noisy").tokens[:, 2:-2:2] >= 16).mean()
    assert abs(share - 0.2) < 0.02


def test_fuzzy_recall_ends_with_a_long_key_seen_before():
    found = drawn("fuzzy_recall")
    for tokens, targets in zip(found.tokens, found.targets, strict=True):
        line = [t for t in tokens.tolist() if t != 16]
        groups = [tuple(g) for _, g in itertools.groupby(line, key=lambda t: t >= 8)]
        keys, values = groups[::2], groups[1::2]
        assert len(keys[-1]) == 3
        assert keys[-1] in keys[:-1]
        known: dict[tuple, tuple] = {}
        answers = []
        for key, value in zip(keys, values, strict=True):
            answers += value if key in known else ()
            assert known.setdefault(key, value) == value
            assert len(set(key)) == len(key)
        assert targets[targets != IGNORED].tolist() == answers


def test_selective_copying_compression_and_memorization():
    copy = drawn("selective_copying")
    for tokens, targets in zip(copy.tokens, copy.targets, strict=True):
        assert tokens[47] == 15
        assert (tokens[48:] == 14).all()
        assert targets[48:].tolist() == [t for t in tokens[:47] if t < 14]
    squeeze = drawn("compression")
    assert (squeeze.tokens[:, -1] == 15).all()
    assert (squeeze.targets[:, :-1] == squeeze.tokens[:, :-1]).all()
    one, other = drawn("memorization"), drawn("memorization", seed=8, purpose="train")
    learnt: dict[int, int] = {}
    for found in (one, other):
        assert (found.tokens[:, 1::2] == 255).all()
        for key, value in zip(found.tokens[:, ::2].flat, found.targets[:, 1::2].flat, strict=True):
            assert learnt.setdefault(int(key), int(value)) == value
    assert len(learnt) == 127
    assert 127 <= min(learnt.values()) <= max(learnt.values()) < 255


@pytest.mark.parametrize(
    ("task", "length", "said"),
    [
        ("stat_tracking", 8, "Did you mean 'state_tracking'"),
        ({"state_tracking": {"groups": "S3"}}, 8, "Did you mean 'group'"),
        ({"state_tracking": {"group": "S9"}}, 8, "S6 is the largest"),
        ({"state_tracking": {"group": "D4"}}, 8, "expected S3, A5, Z60"),
        ({"state_tracking": {"group": "Z5", "moved": 2}}, 8, "expected 2 or more, in S# or A#"),
        ({"state_tracking": {"group": "A5", "moved": 2}}, 8, "no element of A5"),
        ({"state_tracking": {"group": "S5", "packed": 4}}, 8, "at most 65,536"),
        ({"mqar": {}, "state_tracking": {}}, 8, "one name with its options"),
        ({"mqar": {"pairs": 8}}, 30, "at least 32"),
        ({"mqar": {"vocabulary": 64}}, 64, "above the length"),
        ({"mqar": {"vocabulary": 12, "pairs": 6}}, 8, "must be even and hold"),
        ({"selective_copying": {}}, 32, "below 33"),
        ({"in_context_recall": {"noise": 0.2}}, 32, "needs a noise_vocabulary"),
        ({"fuzzy_recall": {}}, 8, "below two pairs"),
        ({"memorization": {}}, 9, "must be even"),
        ({"final_product": {}}, 3, "no room for 3 elements and END"),
        ({"modular_arithmetic": {"shortest": 9}}, 8, "shortest expression"),
    ],
)
def test_wrong_options_are_told(task, length, said):
    def check():
        name, options = read_task(task)
        generator(name).check(options, length)

    with pytest.raises(ValueError, match=said):
        check()


def test_a_task_of_ones_own_is_named_by_its_import_path():
    path = "arch_search.synthetic.mqar:MQAR"
    assert read_task({path: {"pairs": 4}})[1].pairs == 4
    with pytest.raises(UsageError, match="expected a Generator subclass"):
        generator("arch_search.synthetic.mqar:distinct")


def test_mads_score_is_the_mean_of_the_best_of_each_setting():
    recall = {"baseline": [0.5, 0.9, 0.7], "vocabulary 32": [0.3, 0.5]}
    scores = mad_scores({"in_context_recall": recall, "memorization": {"baseline": [0.4]}})
    assert scores == pytest.approx({"in_context_recall": 0.7, "memorization": 0.4, "mad": 0.55})
    with pytest.raises(ValueError, match="recall has no accuracy for changed"):
        mad_scores({"recall": {"baseline": [1.0], "changed": []}})
    with pytest.raises(ValueError, match="no task was given"):
        mad_scores({})
