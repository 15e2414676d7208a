"""Sweeps whose trials are not trained: a score is written as a worker would have left it."""

import math
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from arch_search.attempt import Attempt
from arch_search.errors import Diverged
from arch_search.plan_spec import Plan, PlannedRun
from arch_search.planning import make_plan
from arch_search.search.sweep import Sweep
from arch_search.search.trials import Trial
from arch_search.storage import Root

sys.path.insert(0, str(Path(__file__).parent))

from scores import quality

BASE: dict[str, Any] = {
    "name": "s",
    "model": {"pattern": "gdn*3 attn", "width": 32, "mlp": {"width": 32}},
    "data": {"corpus": "sotu", "sequence_length": 64, "batch": 4},
    "train": {"tokens": 25600},  # 100 steps
    "evaluate": ["perplexity"],
    "sweep": {
        "space": {"layout": {"slots": ["gdn", "m2rnn", "attn"], "depth": 4}},
        "trials": 12,
        "rungs": [0.1, 0.3, 1],
        "sampler": "random",
        "again": {"seeds": 0},
    },
}


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Root:
    """A root whose corpus is prepared once for all."""
    root = Root(tmp_path_factory.mktemp("corpus")).make()
    plan_of(root, BASE)
    return root


@pytest.fixture
def root(corpus: Root, tmp_path: Path) -> Root:
    own = Root(tmp_path / "root").make()
    (own.path / "data").symlink_to(corpus.path / "data")
    return own


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Nested keys merged; a value of `...` removes its key."""
    found = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = merged(found[key], value) if both else value
        if value is ...:
            del found[key]
    return found


def plan_of(root: Root, content: dict[str, Any]) -> Plan:
    path = root.path / "sweep.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return make_plan(path, root)


def submitted(root: Root, **sweep: Any) -> Plan:
    """A plan of BASE with changes to its sweep, in force."""
    plan = plan_of(root, {**BASE, "sweep": {**BASE["sweep"], **sweep}})
    root.experiment(plan.name).write_plan(plan)
    return plan


Score = Callable[[PlannedRun], float]


@dataclass
class Stub:
    """Runs what a sweep asks for, one after the other, `room` at a time."""

    root: Root
    plan: Plan
    score: Score = quality
    room: int = 1
    done: list[str] = field(default_factory=list)  # hashes, in the order in which they ran

    def is_over(self, run: PlannedRun) -> bool:
        folder = self.root.run(run.hash)
        attempts = folder.attempts()
        ended = bool(attempts) and (attempts[-1].end() or {}).get("final", False)
        return ended or folder.is_complete(self.plan.evaluations)

    def perform(self, run: PlannedRun) -> None:
        folder = self.root.run(run.hash)
        value = self.score(run)
        self.done.append(run.hash)
        if math.isnan(value):
            with pytest.raises(Diverged), Attempt.claim(folder, experiment="s"):
                raise Diverged(7, "the loss")
            return
        steps = run.spec.steps
        folder.write_result({"state": "FINISHED", "steps": steps, "metrics": {}})
        for evaluation in self.plan.evaluations:
            metrics = {"val/bits_per_byte": value}
            folder.write_evaluation(evaluation, metrics=metrics, tables={})

    def drive(self, *, stop_after: int | None = None) -> Sweep:
        """Drive the sweep to its end, or leave it after so many runs as a killed driver would."""
        sweep = Sweep.open(self.root, self.plan)
        while runs := sweep.due(self.is_over, self.room):
            for run in runs:
                if stop_after is not None and len(self.done) >= stop_after:
                    sweep.telling.published.close()
                    os.close(sweep.ledger._descriptor)
                    return sweep
                self.perform(run)
        sweep.close()
        return sweep


def story(trials: Iterable[Trial]) -> list[Any]:
    """All of a sweep that must not depend on who was killed when."""
    return [
        (t.number, t.params, t.arm.layout, t.state, t.rung, t.reason, t.origin,
         {rung: found.metrics for rung, found in t.outcomes.items()}, sorted(t.fresh))
        for t in trials
    ]  # fmt: skip
