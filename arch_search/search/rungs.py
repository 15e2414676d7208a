"""Budgets of a sweep: what a trial is trained for at each rung.

All rungs of a trial share one warm-up and one stable trunk; each ends in a decay of its own, so
that the score at a rung is that of a finished short run, and the trunk goes on undecayed. A cosine
cut at a rung would be scored at a high learning rate and would rank by how far it had come down.
"""

from dataclasses import replace

from arch_search.plan_spec import ArmSpec
from arch_search.spec import DataSpec, RunSpec, ScheduleSpec, TrainSpec
from arch_search.sweep_spec import SweepSpec


def rung_train(train: TrainSpec, data: DataSpec, sweep: SweepSpec, rung: int) -> TrainSpec:
    """The training of one rung: whole steps, and the same number of warm-up steps at all."""
    per_step = data.batch * data.sequence_length
    whole = -(-train.tokens // per_step)
    steps = max(round(sweep.rungs[rung] * whole), 1)
    schedule = ScheduleSpec(
        name="wsd",
        warmup=round(sweep.warmup * whole) / steps,
        decay=sweep.decay,
        final=train.schedule.final,
    )
    return replace(train, tokens=steps * per_step, schedule=schedule)


def rung_run(arm: ArmSpec, sweep: SweepSpec, rung: int, *, seed: int, code: str) -> RunSpec:
    """The run that scores a trial at a rung."""
    return RunSpec(
        model=arm.model,
        data=arm.data,
        train=rung_train(arm.train, arm.data, sweep, rung),
        init_seed=seed,
        data_seed=seed,
        code=code,
    )


def trained_steps(spec: RunSpec, before: RunSpec | None) -> int:
    """Steps that a rung adds to the one before it, whose trunk it goes on from."""
    if before is None:
        return spec.steps
    return spec.steps - (before.steps - max(round(before.train.schedule.decay * before.steps), 1))
