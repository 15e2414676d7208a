"""The options in words: complete, and docs/blocks.md up to date."""

from pathlib import Path

import pytest

from blocks.describe import describe, markdown
from blocks.registry import BLOCKS

GUIDE = Path(__file__).parents[2] / "docs" / "blocks.md"


def test_the_page_is_up_to_date():
    """Rewrite it with: python -m blocks.describe > docs/blocks.md"""
    assert GUIDE.read_text() == markdown()


@pytest.mark.parametrize("kind", BLOCKS)
def test_every_option_is_explained(kind):
    for row in describe(kind):
        assert len(row.help) > 10, f"{kind}.{row.name} needs a help text"


def test_a_default_that_follows_from_the_width_is_shown_as_numbers():
    rows = {row.name: row for row in describe("m2rnn")}
    assert rows["value_heads"].default == "5 at width 64, 84 at width 1024"
    assert rows["nonlinearity"].takes.startswith("tanh, identity")
