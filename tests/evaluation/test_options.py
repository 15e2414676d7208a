"""Options that no evaluation can be done with are refused as they are read."""

import pytest

from arch_search.errors import UsageError
from arch_search.tasks.registry import resolve

WRONG = [
    ("perplexity", "window", -1),
    ("perplexity", "tokens_per_document", -5),
    ("perplexity", "documents", -1),
    ("loss_by_position", "multiple", 0),
    ("loss_by_position", "documents", 0),
    ("loss_by_position", "buckets", 0),
    ("newlines", "multiple", 1),
    ("newlines", "buckets", 0),
    ("newlines", "piece", -1),
    ("knockout", "ways", []),
    ("knockout", "layers", [-1]),
    ("passkey", "multiples", []),
    ("needles", "multiples", [0]),
    ("collapse", "factor", float("nan")),
    ("collapse", "factor", float("inf")),
    ("task", "solved_at", float("nan")),
    ("lm_eval", "seed", -1),
]


@pytest.mark.parametrize(("name", "option", "value"), WRONG, ids=str)
def test_an_option_out_of_range_is_one_line(name, option, value):
    with pytest.raises(UsageError) as error:
        resolve([{name: {option: value}}])
    said = str(error.value)
    assert said.startswith(f"evaluate.{name}.{option}")
    assert "\n" not in said
    assert "expected" in said


def test_zero_keeps_meaning_all():
    [spec] = resolve([{"perplexity": {"documents": 0, "tokens_per_document": 0, "window": 0}}])
    assert spec.options == {"documents": 0, "tokens_per_document": 0, "window": 0}
