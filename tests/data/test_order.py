"""The keyed bijection behind the order of windows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch_search.data.order import Permutation, keyed_words

GOLDEN = [7, 5, 9, 1, 6, 4, 2, 0, 8, 3]
GOLDEN_WORDS = [14279155413192198366, 4544884094670241094]


@given(st.integers(1, 3000), st.integers())
def test_it_is_a_bijection(size, key):
    values = Permutation(size, key)(np.arange(size))
    assert sorted(values) == list(range(size))


@given(st.integers(1, 2**40), st.data())
def test_a_place_is_answered_alone_as_in_company(size, data):
    places = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20))
    permutation = Permutation(size, "key")
    together = permutation(np.array(places))
    assert [permutation(np.array([place]))[0] for place in places] == list(together)
    assert ((together >= 0) & (together < size)).all()


def test_it_is_the_same_on_every_machine_and_version():
    assert list(Permutation(10, "manifest", "train", 0, 0)(np.arange(10))) == GOLDEN
    assert keyed_words(2, "a", 1) == GOLDEN_WORDS
    assert keyed_words(9, "a", 1)[:2] == GOLDEN_WORDS


def test_keys_give_unrelated_orders():
    size = 5000
    one = Permutation(size, 0)(np.arange(size))
    other = Permutation(size, 1)(np.arange(size))
    agree = (one == other).sum()  # Poisson with mean 1
    assert agree < 8
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(size)


@pytest.mark.parametrize("size", [20, 257, 5000])
def test_where_a_place_goes_is_uniform_over_keys(size):
    bins, keys = 10, 2000
    hits = np.array([Permutation(size, key)(np.array([3]))[0] for key in range(keys)])
    counts = np.bincount(hits * bins // size, minlength=bins)
    expected = np.bincount(np.arange(size) * bins // size, minlength=bins) * keys / size
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 33.7  # the 0.9999 quantile for 9 degrees of freedom


def test_neighbours_are_not_kept_together():
    size = 60_000
    gaps = np.abs(np.diff(Permutation(size, "neighbours")(np.arange(size))))
    assert (gaps == 1).sum() < 12  # Poisson with mean 2
    assert abs(gaps.mean() / (size / 3) - 1) < 0.02
