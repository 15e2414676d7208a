"""A sweep in the terminal: its plan before it runs, its front and its trials after."""

import math
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from arch_search.plan_spec import Plan
from arch_search.search.outcome import (
    change_in_words,
    complete,
    front,
    rank_agreement,
    second_looks,
    tokens_in_full,
    tokens_used,
    values_of,
)
from arch_search.search.rungs import rung_run, trained_steps
from arch_search.search.trials import Ledger, Trial, ledger_path
from arch_search.storage import Root
from arch_search.sweep_spec import SweepSpec
from arch_search.wording import counted, share


def show_sweep_plan(plan: Plan, console: Console) -> None:
    """The space, the budgets and what the search is expected to cost. Imports torch."""
    from arch_search.search.candidates import Candidates

    assert plan.sweep is not None
    sweep = plan.sweep
    console.print(Text.assemble((plan.name, "bold"), "  ", plan.question))
    size = Candidates.of_plan(plan).space().size()
    many = "more than can be listed" if size is None else f"{size:,}"
    lines = [
        f"Space: {many} points; {sweep.trials} distinct layouts are to be tried "
        f"({len(sweep.enqueue)} of them given), proposed by {sweep.sampler.name}.",
        "Objectives: " + ", ".join(f"{way} {name}" for name, way in sweep.objectives.items()) + ".",
        *(f"Taken in beforehand: {note}." for note in plan.notes),
        *(f"Limit: {name} {limit}." for name, limit in sweep.limits.items()),
        *_rung_lines(plan, sweep),
        f"Second look: up to {sweep.again.members} members of the front, {sweep.again.seeds} fresh "
        "seeds each, whole budget.",
        f"Base (what hold keeps to): {plan.arms[0].layout}, "
        f"{plan.arms[0].counts['parameters']:,.0f} parameters, "
        f"{plan.arms[0].counts['state_elements']:,.0f} state elements.",
    ]
    for line in lines:
        console.print(line, highlight=False)


def expected_tokens(plan: Plan) -> list[tuple[float, int, int]]:
    """For each rung: trials expected there, tokens of its run, and those beyond its trunk."""
    assert plan.sweep is not None
    sweep, base = plan.sweep, plan.arms[0]
    per_step = base.data.batch * base.data.sequence_length
    immune = sum(sweep.is_immune(number) for number in range(sweep.trials))
    kept = {"asha": 1 / sweep.pruner.reduction, "median": 0.5, "none": 1.0}[sweep.pruner.rule]
    runs = [rung_run(base, sweep, rung, seed=0, code="") for rung in range(len(sweep.rungs))]
    found = []
    for rung, run in enumerate(runs):
        judged = (sweep.trials - immune) * kept**rung
        new = trained_steps(run, runs[rung - 1] if rung else None)
        found.append((judged + immune, run.train.tokens, new * per_step))
    return found


def _rung_lines(plan: Plan, sweep: SweepSpec) -> list[str]:
    expected = expected_tokens(plan)
    total = sum(count * new for count, _, new in expected)
    immune = sum(sweep.is_immune(number) for number in range(sweep.trials))
    full = sweep.trials * expected[-1][1]
    rule = {"asha": f"the best 1/{sweep.pruner.reduction} goes on", "median": "the better half "
            "goes on", "none": "all go on"}[sweep.pruner.rule]  # fmt: skip
    return [
        *(
            f"Rung {rung}: {tokens:,} tokens ({new:,} beyond the trunk before it), about "
            f"{count:.0f} trials."
            for rung, (count, tokens, new) in enumerate(expected)
        ),
        f"At a rung {rule}; {immune} of the {sweep.trials} trials are never pruned. Each rung ends "
        f"in a decay of its own ({share(sweep.decay)} of its tokens), from a trunk at full rate.",
        f"Expected: {total:,.0f} tokens, {100 * total / full:.0f} % of training all in full.",
    ]


def sweep_plan(root: Root, name: str) -> Plan | None:
    """The plan of an experiment that is a sweep; None for others and for names of nothing."""
    folder = root.experiment(name)
    if not (folder.path / "plan.json").is_file():
        return None
    plan = folder.frozen_plan()
    return plan if plan.sweep is not None else None


def read_sweep(root: Root, plan: Plan) -> Ledger:
    """The record of a sweep as it stands."""
    return Ledger(ledger_path(root.experiment(plan.name).path, plan.sweep_version))


def describe_sweep(root: Root, plan: Plan) -> dict[str, Any]:
    """A sweep as plain data: what `compare --json` prints of it."""
    assert plan.sweep is not None
    sweep, ledger = plan.sweep, read_sweep(root, plan)
    best = front(sweep, ledger.trials)
    return {
        "name": plan.name,
        "over": ledger.end,
        "objectives": sweep.objectives,
        "front": [trial.number for trial in best],
        "trials": [_trial_row(sweep, trial) for trial in ledger.trials],
        "second_look": [asdict(one) for one in second_looks(sweep, ledger.trials)],
        "rank_agreement": [asdict(one) for one in rank_agreement(sweep, ledger.trials)],
        "tokens": {
            "used": tokens_used(sweep, ledger.trials),
            "in_full": tokens_in_full(sweep, ledger.trials),
        },
    }


def _trial_row(sweep: SweepSpec, trial: Trial) -> dict[str, Any]:
    scores = {
        rung: dict(zip(sweep.objectives, values_of(sweep, trial, rung), strict=True))
        for rung, found in trial.outcomes.items()
        if not found.failed
    }
    return {
        "number": trial.number,
        "layout": trial.arm.layout,
        "state": trial.state,
        "rung": trial.rung,
        "immune": trial.immune,
        "origin": trial.origin,
        "reason": trial.reason,
        "params": trial.params,
        "scores": scores,
        "counts": trial.arm.counts,
    }


def show_sweep(root: Root, plan: Plan, console: Console) -> None:
    """The front, what its members lost on a second look, and what the search cost."""
    assert plan.sweep is not None
    sweep, ledger = plan.sweep, read_sweep(root, plan)
    trials = ledger.trials
    own = [trial for trial in trials if not trial.is_taken]
    states = [f"{sum(t.state == s for t in own)} {s}"
              for s in ("COMPLETE", "PRUNED", "FAIL", "RUNNING")]  # fmt: skip
    states += [f"{len(trials) - len(own)} taken from elsewhere"] if len(own) < len(trials) else []
    console.print(f"{plan.name}: {ledger.end or 'not over'}; {', '.join(states)}", highlight=False)
    used, full = tokens_used(sweep, trials), tokens_in_full(sweep, trials)
    if full:
        console.print(
            f"{used:,} tokens, {100 * used / full:.0f} % of what all would have cost in full",
            highlight=False,
        )
    best = front(sweep, trials)
    if best:
        console.print(_front_table(sweep, best))
    outside = sum(t.state == "COMPLETE" for t in trials) - len(complete(sweep, trials))
    if outside:
        console.print(f"{outside} complete trials pass a limit and are left out", highlight=False)
    lost = [one.lost for one in second_looks(sweep, trials)]
    if lost:
        console.print(
            f"On fresh seeds {counted(len(lost), 'value')} of the front came out "
            f"{change_in_words(lost)} on average than those they were chosen by (winner's curse)",
            highlight=False,
        )


def _front_table(sweep: SweepSpec, best: list[Trial]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("front")
    table.add_column("layout", overflow="fold")
    for name in sweep.objectives:
        table.add_column(name, justify="right")
    table.add_column("fresh seeds (95 %)", justify="right")
    looks = {(one.number, one.metric): one for one in second_looks(sweep, best)}
    for trial in best:
        values = values_of(sweep, trial, len(sweep.rungs) - 1)
        again = [
            f"{one.mean:.4f} [{one.low:.4f}, {one.high:.4f}] n={len(one.fresh)}"
            if math.isfinite(one.low)
            else f"{one.mean:.4f} n=1"
            for name in sweep.objectives
            if (one := looks.get((trial.number, name)))
        ]
        shown = [f"{value:,.4f}".rstrip("0").rstrip(".") for value in values]
        options = {k: v for k, v in trial.params.items() if not k.startswith("layer.")}
        extra = f" ({', '.join(f'{k} {v}' for k, v in options.items())})" if options else ""
        table.add_row(trial.name, trial.arm.layout + extra, *shown, "; ".join(again) or "–")
    return table
