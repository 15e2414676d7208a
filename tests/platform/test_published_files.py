"""Every published configuration is an experiment file that can be planned, here and now."""

from pathlib import Path

import pytest

from arch_search.planning import make_plan
from arch_search.storage import Root

FOLDER = Path(__file__).parents[2] / "experiments" / "published"
FILES = sorted(FOLDER.glob("*.yaml"))


def test_all_twenty_six_are_there():
    assert len(FILES) == 26


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_plans_as_one_run_of_the_published_length(path, tmp_path):
    plan = make_plan(path, Root(tmp_path).make())
    (run,) = plan.runs
    assert plan.name == path.stem
    assert run.spec.steps == 25_000
    millions = plan.arms[0].counts["parameters"] / 1e6
    low, high = (400, 480) if path.stem.startswith("410m") else (6_700, 7_100)
    assert low < millions < high
