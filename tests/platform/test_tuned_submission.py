"""Submitting a file that tunes: first the learning rates, then the comparison with the winners."""

import pytest

from arch_search.api import plan, submit
from arch_search.storage import Root

from .conftest import FIRST, SMALL

FILE = (
    *SMALL,
    "name=tuned",
    "train.tokens=1280",
    "hold=[]",
    "evaluate=[{perplexity: {tokens_per_document: 64}}]",
    "tune={learning_rate: [1e-3, 1e-2], per: with}",
)


@pytest.mark.services
@pytest.mark.slow
def test_a_submission_tunes_then_compares_and_a_second_starts_nothing(root, capsys):
    assert submit(FIRST, FILE, root=root.path) == "tuned"
    tuning, compared = (root.experiment(name).plan() for name in ("tuned-tune", "tuned"))
    assert len(tuning.runs) == 4
    assert {run.arm for run in tuning.runs}.isdisjoint({run.arm for run in compared.runs})
    assert {one.level for one in compared.tuned} == {"baseline", "m2rnn"}
    chosen = {one.level: one.learning_rate for one in compared.tuned}
    assert {arm.name: arm.train.optimiser.learning_rate for arm in compared.arms} == {
        "baseline": chosen["baseline"], "m2rnn-1-first": chosen["m2rnn"],
    }  # fmt: skip
    assert all(root.run(run.hash).result() for run in compared.runs)
    attempts = count_attempts(root)
    capsys.readouterr()
    assert submit(FIRST, FILE, root=root.path) == "tuned"
    assert "nothing to do" in capsys.readouterr().out
    assert count_attempts(root) == attempts
    assert plan(FIRST, FILE, root=root.path).arms == compared.arms


def count_attempts(root: Root) -> int:
    return sum(len(run.attempts()) for run in root.runs())
