"""MAD's score of each architecture (arXiv 2403.17844), from the runs of experiments on its tasks.

A setting is a task with its options, length and number of items; what else differs between an
architecture's runs is its sweep: learning rate and weight decay. Free of torch.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean

from arch_search.errors import UsageError
from arch_search.plan_spec import ArmSpec
from arch_search.records import Experiment, RunRecord
from arch_search.spec import content_hash
from arch_search.synthetic.mad_score import mad_scores

TASKS = (
    *("in_context_recall", "noisy_recall", "fuzzy_recall"),
    *("selective_copying", "compression", "memorization"),
)
METRIC = "task/balanced_accuracy"

Sweeps = dict[str, dict[str, list[float]]]
"""task -> setting -> the accuracy of each member of the sweep, a mean over its seeds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MadRow:
    """One architecture. `scores` by task; `mad` only where all six tasks have one.

    settings, runs: how many settings each task has, and how many runs stand behind all.
    """

    architecture: str
    layout: str
    scores: dict[str, float]
    mad: float | None
    settings: dict[str, int]
    runs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MadTable:
    """left_out: settings that not every architecture has, which no score counts."""

    rows: tuple[MadRow, ...]
    left_out: tuple[str, ...]


def mad_table(experiments: Iterable[Experiment]) -> MadTable:
    """Score every architecture over the settings that all of them have.

    Models are one architecture if they differ in vocabulary and decoder alone, which tasks set.

    Raises:
        UsageError: no finished run on one of MAD's tasks, or no setting that all share.
    """
    arms: dict[str, ArmSpec] = {}
    values: dict[str, dict[tuple[str, str], dict[str, list[float]]]] = {}
    for run in (run for experiment in experiments for run in experiment.trained):
        task = mad_task(run.arm)
        if task is None or METRIC not in run.metrics:
            continue
        key = _architecture(run.arm)
        arms.setdefault(key, run.arm)
        at = values.setdefault(key, {}).setdefault((task, _setting(run)), defaultdict(list))
        at[_sweep_member(run)].append(run.metrics[METRIC])
    if not values:
        raise UsageError(f"no finished run on one of MAD's tasks has {METRIC}: {', '.join(TASKS)}")
    shared = set.intersection(*(set(found) for found in values.values()))
    every = {place for found in values.values() for place in found}
    if not shared:
        raise UsageError("the architectures have no setting of a task in common")
    rows = tuple(
        _row(arms[key], {place: found[place] for place in sorted(shared)})
        for key, found in values.items()
    )
    left_out = tuple(f"{task} {setting}" for task, setting in sorted(every - shared))
    return MadTable(rows=_told_apart(rows), left_out=left_out)


def _row(arm: ArmSpec, found: Mapping[tuple[str, str], Mapping[str, Sequence[float]]]) -> MadRow:
    sweeps: Sweeps = {}
    for (task, setting), members in found.items():
        sweeps.setdefault(task, {})[setting] = [fmean(seeds) for seeds in members.values()]
    scores = mad_scores(sweeps)
    mad = scores.pop("mad")
    return MadRow(
        architecture=arm.name,
        layout=arm.layout,
        scores=scores,
        mad=mad if set(scores) == set(TASKS) else None,
        settings={task: len(settings) for task, settings in sweeps.items()},
        runs=sum(len(seeds) for members in found.values() for seeds in members.values()),
    )


def _told_apart(rows: tuple[MadRow, ...]) -> tuple[MadRow, ...]:
    """Arms of one name in several experiments that are other models, by their layouts as well."""
    names = [row.architecture for row in rows]
    return tuple(
        replace(row, architecture=f"{row.architecture} ({row.layout})")
        if names.count(row.architecture) > 1
        else row
        for row in rows
    )


def mad_task(arm: ArmSpec) -> str | None:
    """Which of MAD's tasks an arm is trained on; None: none of them."""
    if arm.data.task is None:
        return None
    [(name, options)] = arm.data.task.items()
    if name == "in_context_recall" and options.get("noise"):
        return "noisy_recall"
    return name if name in TASKS else None


def _architecture(arm: ArmSpec) -> str:
    return content_hash(asdict(replace(arm.model, vocabulary=0, decoder="none")))


def _setting(run: RunRecord) -> str:
    data = run.planned.spec.data
    assert data.task is not None
    [options] = data.task.values()
    said = json.dumps(options, sort_keys=True)
    return f"{said}, {data.sequence_length} tokens, {data.items or 'new'} items"


def _sweep_member(run: RunRecord) -> str:
    """What a run was trained with, its seeds apart."""
    return content_hash([asdict(run.planned.spec.train), run.planned.spec.data.batch])
