"""Tabulates a space by real short runs, and replays searches on the table.

    python tests/search/tabulate_layouts.py build ROOT table.csv [--processes 16] [--seeds 3]
    python tests/search/tabulate_layouts.py replay table.csv

build: every layout of a four-layer space at every rung and seed, each a real run of the platform;
it goes on where it was stopped. replay: for each of 20 sampler seeds, the tokens until a layout
within 1% of the best has been trained in full, by a sweep with pruning and by random search
without; and whether layouts differ at least three times as much as seeds, without which the table
tells nothing.
"""

import argparse
import csv
import os
import statistics
import tempfile
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from arch_search.planning import make_plan
from arch_search.search.candidates import Candidates
from arch_search.search.rungs import rung_run, trained_steps
from arch_search.search.space import Draw
from arch_search.search.sweep import Sweep
from arch_search.search.trials import Outcome, Trial
from arch_search.spec import Plan, RunSpec
from arch_search.storage import Root

METRIC = "val/bits_per_byte"
SPACE = {"layout": {"slots": ["gdn", "m2rnn", "attn", "mamba2"], "depth": 4}}
FILE: dict[str, Any] = {
    "name": "tabulated",
    "model": {"pattern": "gdn*3 attn", "width": 32, "mlp": {"width": 64},
              "blocks": {"m2rnn": {"kind": "m2rnn", "key_dim": 12}}},
    "data": {"corpus": "sotu", "sequence_length": 128, "batch": 8},
    "train": {"tokens": 200_000, "optimiser": {"learning_rate": 3e-3}},
    "evaluate": [{"perplexity": {"tokens_per_document": 1024}}],
    "log": {"every": 50, "checkpoint_every": 10_000, "validate_every": 10_000},
}  # fmt: skip


def plan_of(root: Root, **sweep: Any) -> Plan:
    """A sweep over the tabulated space."""
    content = {**FILE, "sweep": {"space": SPACE, "trials": 256, "again": {"seeds": 0}, **sweep}}
    path = root.path / "tabulated.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return make_plan(path, root)


def build(root: Root, table: Path, *, processes: int, layouts: int, seeds: int) -> None:
    """Train what is missing, then write the table: layout, seed, rung, tokens, value."""
    plan = plan_of(root)
    assert plan.sweep is not None
    candidates = Candidates.of_plan(plan)
    draws = [found for _, found in candidates.space().draws() if isinstance(found, Draw)]
    step = max(len(draws) // layouts, 1)
    jobs = []
    for draw in draws[::step][:layouts]:
        arm = candidates.resolve(draw)
        code = candidates.code(arm.model)
        for seed in range(seeds):
            rungs = range(len(plan.sweep.rungs))
            specs = [rung_run(arm, plan.sweep, rung, seed=seed, code=code) for rung in rungs]
            jobs.append((root.path, plan, arm.layout, seed, specs))
    with ProcessPoolExecutor(processes) as pool, table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["layout", "seed", "rung", "tokens", METRIC])
        for rows in pool.map(_train, jobs):
            writer.writerows(rows)
            file.flush()


def _train(job: tuple[Path, Plan, str, int, list[RunSpec]]) -> list[tuple[Any, ...]]:
    """All rungs of one layout and seed, each going on from the trunk of the one before."""
    os.environ["OMP_NUM_THREADS"] = "1"
    from arch_search.attempt import Attempt
    from arch_search.run_task import execute

    path, plan, layout, seed, specs = job
    root, rows = Root(path), []
    for rung, spec in enumerate(specs):
        folder = root.run(spec.hash)
        folder.freeze(spec)
        if not folder.is_complete(plan.evaluations):
            with Attempt.claim(folder, experiment=plan.name) as attempt:
                execute(attempt, spec, log=plan.log, resources=plan.resources,
                        evaluations=plan.evaluations, root=root)  # fmt: skip
        found = folder.evaluation(plan.evaluations[0])
        assert found is not None
        rows.append((layout, seed, rung, spec.train.tokens, found["metrics"][METRIC]))
    return rows


def read(table: Path) -> dict[tuple[str, int, int], float]:
    """Values by (layout, seed, rung)."""
    with table.open() as file:
        rows = csv.DictReader(file)
        return {(r["layout"], int(r["seed"]), int(r["rung"])): float(r[METRIC]) for r in rows}


def spreads(values: dict[tuple[str, int, int], float], last: int) -> tuple[float, float]:
    """Standard deviations at the whole budget: of the layouts' means, and between seeds."""
    by_layout: dict[str, list[float]] = defaultdict(list)
    for (layout, _, rung), value in values.items():
        if rung == last:
            by_layout[layout].append(value)
    means = [statistics.mean(found) for found in by_layout.values()]
    within = [statistics.variance(found) for found in by_layout.values() if len(found) > 1]
    return statistics.stdev(means), statistics.mean(within) ** 0.5


def replay(table: Path, seeds: int = 20) -> None:
    """Print the spreads and the median of tokens over sampler seeds, for both searches."""
    values = read(table)
    last = max(rung for _, _, rung in values)
    between, within = spreads(values, last)
    print(
        f"between layouts {between:.4f}, between seeds {within:.4f}, {between / within:.1f} times"
    )
    full = {layout: v for (layout, seed, rung), v in values.items() if (seed, rung) == (0, last)}
    target = 1.01 * min(full.values())
    plain = {"sampler": "random", "pruner": {"rule": "none"}, "rungs": [1]}
    searches: dict[str, dict[str, Any]] = {"pruned tpe": {"sampler": "tpe"}, "random": plain}
    found = {
        name: statistics.median(
            tokens_until(values, target, last, seed=seed, **sweep) for seed in range(seeds)
        )
        for name, sweep in searches.items()
    }
    share = found["pruned tpe"] / found["random"]
    print(f"{len(full)} layouts, target {target:.4f}: {found}; {share:.0%} of random's tokens")


def tokens_until(
    values: dict[tuple[str, int, int], float], target: float, last: int, **sweep: Any
) -> int:
    """Tokens trained on until a trial's value at the whole budget is within the target."""
    with tempfile.TemporaryDirectory() as folder:
        root = Root(folder).make()
        plan = plan_of(root, **sweep)
        root.experiment(plan.name).write_plan(plan)
        driven = Sweep.open(root, plan)
        over: set[str] = set()
        spent, by_hash = 0, {}
        driven._outcome = lambda run: _looked_up(values, by_hash[run.hash], last)  # type: ignore[method-assign]
        while runs := driven.due(lambda run: run.hash in over, 1):
            trial = driven.ledger.trials[int(runs[0].arm[1:5])]
            by_hash[runs[0].hash] = (trial, plan)
            before = trial.run(plan.sweep, trial.rung - 1).spec if trial.rung else None
            spec = runs[0].spec
            spent += trained_steps(spec, before) * spec.data.batch * spec.data.sequence_length
            over.add(runs[0].hash)
            reached = _looked_up(values, (trial, plan), last).metrics.get(METRIC, target + 1)
            if trial.rung == len(plan.sweep.rungs) - 1 and reached <= target:
                break
        driven.published.close()
        return spent


def _looked_up(
    values: dict[tuple[str, int, int], float], of: tuple[Trial, Plan], last: int
) -> Outcome:
    trial, plan = of
    assert plan.sweep is not None
    rung = last if trial.rung == len(plan.sweep.rungs) - 1 else trial.rung
    value = values.get((trial.arm.layout, 0, rung))
    return Outcome(failed="not in the table") if value is None else Outcome(metrics={METRIC: value})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    making = verbs.add_parser("build")
    making.add_argument("root")
    making.add_argument("table", type=Path)
    making.add_argument("--processes", type=int, default=os.cpu_count())
    making.add_argument("--layouts", type=int, default=256)
    making.add_argument("--seeds", type=int, default=3)
    verbs.add_parser("replay").add_argument("table", type=Path)
    given = parser.parse_args()
    if given.verb == "build":
        build(Root(given.root).make(), given.table, processes=given.processes,
              layouts=given.layouts, seeds=given.seeds)  # fmt: skip
    else:
        replay(given.table)
