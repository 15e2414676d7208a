"""Learning rates chosen for each mixer before they are compared, with seeds of their own.

    tune: {learning_rate: [1e-3, 3e-3, 1e-2], per: with}

One arm stands for each level of `with` (that with most replaced layers) and is trained at every
rate, as is the baseline. The best rate by the primary metric, which is one of validation data, is
then set in all arms of that level. The runs are found by their hash, so nothing else is remembered.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from arch_search.errors import UsageError
from arch_search.experiment import ExperimentFile, TuneFile
from arch_search.factors import key
from arch_search.metric_names import direction
from arch_search.plan_spec import ArmSpec, FindingSpec, Plan, PlannedRun, TuneSpec
from arch_search.progress import run_state
from arch_search.storage import Root, RunFolder
from arch_search.wording import percent

FIRST_SEED = 1_000_000  # far from the seeds that a comparison counts from 0
BASELINE = "baseline"


def tuning_name(name: str) -> str:
    return f"{name}-tune"


def tuning_arms(tune: TuneFile, arms: Sequence[ArmSpec]) -> tuple[ArmSpec, ...]:
    """One arm for each level and rate.

    Raises:
        UsageError: no arm has a level of `with`.
    """
    chosen = _representatives(arms)
    if set(chosen) <= {BASELINE}:
        raise UsageError("tune.per: with needs arms that replace layers (arms.replace, arms.with)")
    rates = sorted(set(tune.learning_rate))
    return tuple(
        _at_rate(arm, level, rate, tune) for level, arm in chosen.items() for rate in rates
    )


def tuning_seeds(tune: TuneFile) -> tuple[int, ...]:
    """Seeds that no comparison uses."""
    return tuple(FIRST_SEED + i for i in range(tune.seeds))


def level_of(arm: ArmSpec) -> str | None:
    """The level of `with` that an arm belongs to; None for one that has none, as a control."""
    if arm.is_baseline:
        return BASELINE
    return key(arm.factors["with"]) if "with" in arm.factors else None


def _representatives(arms: Sequence[ArmSpec]) -> dict[str, ArmSpec]:
    chosen: dict[str, ArmSpec] = {}
    for arm in arms:
        level = level_of(arm)
        if level is not None and (
            level not in chosen or len(arm.replaced) > len(chosen[level].replaced)
        ):
            chosen[level] = arm
    return chosen


def _at_rate(arm: ArmSpec, level: str, rate: float, tune: TuneFile) -> ArmSpec:
    return replace(
        arm,
        name=f"{level}-lr={rate:g}",
        factors={"with": level, "learning_rate": rate},
        is_baseline=False,
        also=(),
        train=_with_rate(replace(arm.train, tokens=tune.tokens or arm.train.tokens), rate),
    )


def _with_rate(train: Any, rate: float) -> Any:
    return replace(train, optimiser=replace(train.optimiser, learning_rate=rate))


def read_tuning(plan: Plan, root: Root) -> tuple[TuneSpec, ...] | None:
    """The outcome of a tuning experiment; None while a run of it is still to be made.

    A run that failed counts as the worst there is.

    Raises:
        UsageError: a level for which every rate failed.
    """
    values: dict[str, dict[str, list[float]]] = {}
    arms = {arm.name: arm for arm in plan.arms}
    for run in plan.runs:
        value = _value(root.run(run.hash), run, plan)
        if value is None:
            return None
        level, rate = (arms[run.arm].factors[name] for name in ("with", "learning_rate"))
        values.setdefault(level, {}).setdefault(f"{rate:g}", []).append(value)
    return tuple(_choose(plan, level, found) for level, found in values.items())


def _value(folder: RunFolder, run: PlannedRun, plan: Plan) -> float | None:
    state, _ = run_state(folder, plan)
    if state == "FAILED":
        return math.nan
    result = folder.result()
    if state != "FINISHED" or result is None:
        return None
    metrics = dict(result["metrics"])
    for evaluation in plan.evaluations:
        metrics |= (folder.evaluation(evaluation) or {"metrics": {}})["metrics"]
    return float(metrics.get(plan.primary.metric, math.nan))


def _choose(plan: Plan, level: str, found: dict[str, list[float]]) -> TuneSpec:
    """The best rate by the mean over seeds; one whose runs failed is never it."""
    means = {rate: sum(values) / len(values) for rate, values in found.items()}
    finite = {rate: mean for rate, mean in means.items() if math.isfinite(mean)}
    if not finite:
        raise UsageError(
            f"tune: every learning rate of {level} failed ({', '.join(means)}); give lower ones"
        )
    sign = direction(plan.primary.metric) or -1
    best = max(finite, key=lambda rate: sign * finite[rate])
    return TuneSpec(
        level=level,
        experiment=plan.name,
        metric=plan.primary.metric,
        means=finite,
        failed=tuple(rate for rate in means if rate not in finite),
        learning_rate=float(best),
    )


def apply_tuning(arms: Sequence[ArmSpec], tuned: Sequence[TuneSpec]) -> tuple[ArmSpec, ...]:
    """The arms with the rate of their level; a control takes that of the first level tuned."""
    rates = {one.level: one.learning_rate for one in tuned}
    first = next((one.learning_rate for one in tuned if one.level != BASELINE), None)
    return tuple(
        replace(arm, train=_with_rate(arm.train, rate))
        if (rate := rates.get(level_of(arm) or "", first)) is not None
        else arm
        for arm in arms
    )


def describe_tuning(
    file: ExperimentFile, tuned: Sequence[TuneSpec], runs: int
) -> tuple[FindingSpec, ...]:
    """What the tuning found, or that it is still to come."""
    if file.tune is None:
        return ()
    if not tuned:
        rates = ", ".join(f"{rate:g}" for rate in sorted(set(file.tune.learning_rate)))
        text = (
            f"learning rates are not tuned yet: submit first makes {runs} runs in "
            f"{tuning_name(file.name)} at {rates}, and the arms' rates here are provisional"
        )
        return (FindingSpec(level="limit", subject="learning rate", text=text),)
    return tuple(_tuned(one) for one in tuned)


def _tuned(one: TuneSpec) -> FindingSpec:
    best = one.means[f"{one.learning_rate:g}"]
    spread = {rate: mean / best - 1 for rate, mean in one.means.items()}
    shown = ", ".join(f"{rate}: {percent(share)}" for rate, share in spread.items())
    failed = f"; failed at {', '.join(one.failed)}" if one.failed else ""
    text = (
        f"learning rate of {one.level}: {one.learning_rate:g} by {one.metric} in {one.experiment} "
        f"(against it, {shown}{failed})"
    )
    tried = sorted([float(rate) for rate in (*one.means, *one.failed)])
    if one.learning_rate in (tried[0], tried[-1]):
        side = "below" if one.learning_rate == tried[0] else "above"
        text += (
            f". The best is at the edge of the bracket: a better one may lie {side}; widen "
            "tune.learning_rate"
        )
        return FindingSpec(level="warning", subject="learning rate", text=text)
    return FindingSpec(level="limit", subject="learning rate", text=text)
