"""The plan: arms x seeds, every option resolved, every size counted. Runs nothing.

The only place where a file's words become frozen data. It uses torch's meta device to resolve and
count blocks; what comes after (driver, writer, status, compare) reads the result without torch.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from arch_search.composition import load_mapping
from arch_search.confounds import find_confounds
from arch_search.declarations import with_declarations
from arch_search.dropped_arms import contrasts_left, describe_dropped, without_dropped
from arch_search.errors import UsageError
from arch_search.experiment import ExperimentFile, SeedsFile, nearest, validate
from arch_search.input_errors import naming_lines
from arch_search.noise import find_noise, find_resolution
from arch_search.plan_spec import ArmSpec, Plan, PlannedRun
from arch_search.planned_arms import resolve_arms
from arch_search.redaction import without_secrets
from arch_search.run_settings import EvaluationSpec
from arch_search.sources import run_code
from arch_search.spec import RunSpec
from arch_search.storage import NAME, Root
from arch_search.tasks.registry import is_reported, metric_names
from arch_search.tasks.registry import resolve as resolve_evaluations
from arch_search.tuning import (
    apply_tuning,
    describe_tuning,
    read_tuning,
    tuning_arms,
    tuning_name,
    tuning_seeds,
)


def make_plan(path: Path, root: Root, overrides: Sequence[str] = ()) -> Plan:
    """Read an experiment file into a plan; prepares the corpus if it is not there yet.

    Raises:
        UsageError: anything wrong with the file; nothing has run.
    """
    return make_plans(path, root, overrides)[0]


def make_plans(path: Path, root: Root, overrides: Sequence[str] = ()) -> tuple[Plan, Plan | None]:
    """The plan, and that of the runs which must tune its learning rates first, if any are left.

    Raises:
        UsageError: as `make_plan`.
    """
    with naming_lines(path, overrides):
        return _make_plans(path, root, overrides)


def _make_plans(path: Path, root: Root, overrides: Sequence[str]) -> tuple[Plan, Plan | None]:
    mapping = without_secrets(root.path, load_mapping(path, overrides))
    where = str(path)
    file = validate(mapping, where)
    if not NAME.fullmatch(file.name):
        raise UsageError(
            f"{where}: name {file.name!r} must be letters, digits, '.', '_' and '-', "
            "and begin with a letter or digit"
        )
    _check_numbers(file, where)
    _check_length(file, where)
    try:
        evaluations = resolve_evaluations(file.evaluate)
        _check_primary(file, evaluations, where)
        if file.sweep is not None:
            from arch_search.search.planning import make_sweep_plan  # optuna, for sweeps alone

            known = tuple(metric_names(evaluations))
            return make_sweep_plan(file, mapping, where, root, evaluations, known), None
        arms, notes = resolve_arms(file, mapping, where, root, evaluations)
        _check_published(file, arms)
        plan = _frozen(file, mapping, arms, evaluations)
        tuning = _tuning_plan(file, plan)
        tuned = read_tuning(tuning, root) if tuning else ()
        if tuned:
            plan = _frozen(file, mapping, apply_tuning(arms, tuned), evaluations)
        plan = replace(plan, notes=notes, tuned=tuned or ())
        left = without_dropped(plan, file)
        plan = replace(left, contrasts=contrasts_left(file, plan.arms, left.arms))
    except UsageError as error:
        text = str(error)
        raise UsageError(text if text.startswith(where) else f"{where}: {text}") from None
    plan = _with_findings(plan, file, root, len(tuning.runs) if tuning else 0)
    return with_declarations(plan, root), tuning if tuned is None else None


def _frozen(
    file: ExperimentFile,
    mapping: dict[str, Any],
    arms: tuple[ArmSpec, ...],
    evaluations: tuple[EvaluationSpec, ...],
) -> Plan:
    """The plan as the file says it, before it is looked at."""
    return Plan(
        name=file.name,
        question=file.question,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        source=yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True),
        arms=arms,
        runs=_runs(arms, _seed_pairs(file.seeds)),
        primary=file.primary.resolve(),
        evaluations=evaluations,
        log=file.log,
        resources=file.resources,
        tracking_uri=file.tracking.uri,
        wandb_project=file.tracking.wandb,
        stopping_rule=file.stopping_rule,
        published=file.published,
    )


def _tuning_plan(file: ExperimentFile, plan: Plan) -> Plan | None:
    """The runs that tune a plan's learning rates, as an experiment of its own."""
    if file.tune is None:
        return None
    used = {seed for run in plan.runs for seed in (run.spec.init_seed, run.spec.data_seed)}
    seeds = tuning_seeds(file.tune)
    if clash := used & set(seeds):
        raise UsageError(f"seeds: {min(clash)} is one that tune uses; choose smaller ones")
    arms = tuning_arms(file.tune, plan.arms)
    return replace(
        plan,
        name=tuning_name(file.name),
        question=f"Which learning rate suits each mixer of {file.name}?",
        arms=arms,
        runs=_runs(arms, [(i, seed, seed) for i, seed in enumerate(seeds)]),
    )


def _with_findings(plan: Plan, file: ExperimentFile, root: Root, tuning_runs: int) -> Plan:
    """The plan with what is confounded in it, and what it can resolve."""
    seeds = len({run.seed for run in plan.runs})
    noise = find_noise(file.noise, plan.arms, plan.primary.metric, plan.name, root)
    return replace(
        plan,
        findings=(
            *find_confounds(
                file,
                plan.arms,
                seeds=seeds,
                tuned=bool(plan.tuned),
                contrasts=plan.contrasts,
            ),
            *describe_tuning(file, plan.tuned, tuning_runs),
            *describe_dropped(file.arms.drop),
        ),
        noise=noise,
        resolution=find_resolution(
            plan.contrasts, plan.arms, seeds=seeds, noise=noise, primary=plan.primary
        ),
    )


def _check_primary(file: ExperimentFile, evaluations: Sequence[EvaluationSpec], where: str) -> None:
    known = metric_names(evaluations)
    if not is_reported(file.primary.metric, known):
        raise UsageError(
            f"{where}: primary.metric {file.primary.metric!r} is reported by nothing that this "
            f"experiment evaluates; {nearest(file.primary.metric, known)}"
        )


def _check_published(file: ExperimentFile, arms: Sequence[ArmSpec]) -> None:
    known = [arm.name for arm in arms]
    for arm in file.published.values if file.published else ():
        if arm not in known:
            raise UsageError(f"published.values: no arm is called {arm!r}; {nearest(arm, known)}")


def _check_numbers(file: ExperimentFile, where: str) -> None:
    micro = file.resources.micro_batch
    if micro < 0 or micro > file.data.batch:
        raise UsageError(
            f"{where}: resources.micro_batch is {micro}; expected 1 to data.batch "
            f"({file.data.batch}), or 0 for the whole batch"
        )
    gpus = file.resources.gpus
    if gpus > 1 and gpus % 1:
        raise UsageError(
            f"{where}: resources.gpus is {gpus}; expected a share of one (0.25) or whole ones"
        )
    if file.resources.packed and (gpus != 1 or file.sweep is not None):
        raise UsageError(
            f"{where}: resources.packed measures what a run needs of a GPU, with gpus=1 and arms "
            f"that are known beforehand; here gpus is {gpus:g}"
            + (" and a sweep chooses the arms" if file.sweep else "")
            + ", so give the share itself (gpus=0.25)"
        )


def _check_length(file: ExperimentFile, where: str) -> None:
    step = file.data.batch * file.data.sequence_length
    if file.train.tokens < step:
        raise UsageError(
            f"{where}: train.tokens is {file.train.tokens:,}, less than one step of "
            f"data.batch x data.sequence_length = {step:,} tokens"
        )


def _seed_pairs(seeds: int | tuple[int, ...] | SeedsFile) -> list[tuple[int, int, int]]:
    """(replicate, init seed, data seed). A number n means 0 to n-1 for both, in step."""
    if isinstance(seeds, SeedsFile):
        if len(seeds.init) != len(seeds.data) or not seeds.init:
            raise UsageError(
                f"seeds: init lists {len(seeds.init)} and data {len(seeds.data)}; "
                "give as many of one as of the other, at least one"
            )
        pairs = list(zip(seeds.init, seeds.data, strict=True))
        if len(set(pairs)) < len(pairs):
            raise UsageError(f"seeds: {pairs} lists a pair twice; it would count as two replicates")
        return [(i, *pair) for i, pair in enumerate(pairs)]
    listed = tuple(range(seeds)) if isinstance(seeds, int) else seeds
    if not listed:
        raise UsageError(f"seeds: {seeds!r} is no seed at all; give at least 1")
    if len(set(listed)) < len(listed):
        raise UsageError(f"seeds: {list(listed)} lists a seed twice")
    return [(seed, seed, seed) for seed in listed]


def _runs(arms: Sequence[ArmSpec], seeds: Sequence[tuple[int, int, int]]) -> tuple[PlannedRun, ...]:
    """Seeds outside, arms inside: a block of seeds is complete as early as can be."""
    runs = []
    codes = {
        arm.name: run_code({layer.kind for layer in arm.model.layers}, arm.data.task)
        for arm in arms
    }
    for replicate, init_seed, data_seed in seeds:
        for arm in arms:
            spec = RunSpec(
                model=arm.model,
                data=arm.data,
                train=arm.train,
                init_seed=init_seed,
                data_seed=data_seed,
                code=codes[arm.name],
            )
            runs.append(PlannedRun(arm=arm.name, seed=replicate, hash=spec.hash, spec=spec))
    return tuple(runs)
