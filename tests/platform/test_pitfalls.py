"""The table of known pitfalls names tests that exist, for every one of its rows."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs" / "pitfalls.md").read_text()


def test_every_row_names_a_test_that_exists():
    rows = [line for line in TABLE.splitlines() if re.match(r"\| \d+ \|", line)]
    assert [int(row.split("|")[1]) for row in rows] == list(range(1, 27))
    for row in rows:
        assert "`tests/" in row, row
    for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TABLE):
        assert f"def {name}(" in (ROOT / file).read_text(), f"{file} has no {name}"
