"""Numbers as sentences show them."""

import pytest

from arch_search.findings import _sizes
from arch_search.plan_spec import TuneSpec
from arch_search.regressions import MetricEffect, regression_sentences
from arch_search.tuning import _tuned
from arch_search.wording import percent, share


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0123, "+1.2 %"), (-0.5, "−50 %"), (0.994, "+99 %"), (0.996, "+100 %"),
        (1.234, "+123 %"), (-12.5, "−1,250 %"), (0.0, "+0 %"),
    ],
)  # fmt: skip
def test_a_percentage_has_two_digits_or_is_whole(value, said):
    assert percent(value) == said


def test_a_share_has_three_digits_or_is_whole():
    assert [share(value) for value in (0.003, 0.1234, 12.344)] == ["0.3 %", "12.3 %", "1,234 %"]


def test_sentences_show_more_than_everything_as_a_whole_number():
    assert _sizes([0.5, 1.2], 1.0) == "0.5 to 1.2 (50 to 120 % of the baseline)"
    worse = MetricEffect(arm="a", metric="s/loss", share=1.2, low=1, high=2, finding="worse")
    assert list(regression_sentences((worse,), "val/bits_per_byte")) == [
        "Regression in a: s loss (nats per token) (+120 %)."
    ]
    tuned = TuneSpec(level="gdn", experiment="e", metric="m", means={"0.1": 2.3, "0.2": 1.0},
                     failed=(), learning_rate=0.2)  # fmt: skip
    assert "0.1: +130 %" in _tuned(tuned).text
