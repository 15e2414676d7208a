"""A storage root with the corpus prepared once, and short plans of the first ablation in it."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arch_search.attempt import Attempt
from arch_search.plan_spec import Plan, PlannedRun
from arch_search.planning import make_plan
from arch_search.run_task import execute
from arch_search.storage import Root, RunFolder

FIRST = Path(__file__).parents[2] / "experiments" / "first_ablation.yaml"
SMALL = (
    "model.pattern=gdn*2 attn",
    "model.width=32",
    "model.mlp.width=32",
    "data.sequence_length=64",
    "data.batch=4",
    "train.tokens=6400",  # 25 steps
    "seeds=1",
    "hold=[]",
    "arms.cells=[{count: 1, position: first}]",
    "log={every: 5, checkpoint_every: 10, validate_every: 10, validation_tokens: 1000}",
    "evaluate=[{perplexity: {tokens_per_document: 256}}, {loss_by_position: {buckets: 8}}]",
)


@pytest.fixture
def root(prepared: Root, tmp_path: Path) -> Root:
    """A root of the test's own that shares the prepared corpus."""
    own = Root(tmp_path / "root").make()
    plan_for(prepared)
    (own.path / "data").symlink_to(prepared.path / "data")
    return own


@pytest.fixture
def command(
    cli: Callable[..., tuple[int, str, str]], root: Root, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """The command line on that root."""
    monkeypatch.setenv("ARCH_SEARCH_ROOT", str(root.path))
    return cli


def plan_for(root: Root, *overrides: str) -> Plan:
    """A plan of a small form of the first ablation."""
    return make_plan(FIRST, root, [*SMALL, *overrides])


def run_one(
    root: Root,
    plan: Plan,
    run: PlannedRun,
    *,
    before: Callable[[Attempt], None] = lambda attempt: None,
    **resources: Any,
) -> RunFolder:
    """Run one run of a plan in this process, as a worker would."""
    folder = root.run(run.hash)
    folder.freeze(run.spec)
    with Attempt.claim(folder, experiment=plan.name) as attempt:
        before(attempt)
        execute(
            attempt,
            run.spec,
            log=plan.log,
            resources=replace(plan.resources, **resources),
            evaluations=plan.evaluations,
            root=root,
        )
    return folder


def stop_after(steps: int) -> Callable[[Attempt], None]:
    """Ask for a stop once `steps` steps were done: amid the window of a record."""

    def before(attempt: Attempt) -> None:
        real, count = attempt.check, itertools.count(1)

        def check() -> None:
            if next(count) == steps:
                attempt.request_stop("KILLED", "the test asks")
            real()

        attempt.check = check

    return before


def weights_of(folder: RunFolder) -> bytes:
    """The file of the last checkpoint's weights."""
    found = folder.latest_checkpoint()
    assert found is not None
    return (found[2] / "model.safetensors").read_bytes()
