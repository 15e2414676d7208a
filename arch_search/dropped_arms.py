"""Arms that a plan leaves out, once everything that decides the others is settled.

    arms: {drop: [m2rnn-tanh, {nonlinearity: identity, write: delta}]}

Which combinations are chosen, what is held equal to what and which rate is tuned rests on all arms,
so the runs of those that stay are the same runs. Free of torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from arch_search.cells import cells_within
from arch_search.contrasts import declared_interactions, declared_subsets, resolve_contrasts
from arch_search.errors import UsageError
from arch_search.experiment import ExperimentFile, nearest
from arch_search.factors import levels_said
from arch_search.plan_spec import ArmSpec, ContrastSpec, FindingSpec, Plan

Entry = str | Mapping[str, Any]  # an arm's name, or levels of factors


def without_dropped(plan: Plan, file: ExperimentFile) -> Plan:
    """The plan without the arms, and their runs, that an entry of `drop` names or is true of.

    Raises:
        UsageError: an entry that is true of no arm, or of the baseline; no other arm left.
    """
    gone = {name for entry in file.arms.drop for name in _dropped(entry, plan.arms)}
    baseline = None if file.baseline is None else plan.arms[0].name
    if baseline in gone:
        raise UsageError(
            f"arms.drop matches {baseline!r}, which all others are compared with; keep it"
        )
    arms = tuple(arm for arm in plan.arms if arm.name not in gone)
    if gone and {arm.name for arm in arms} <= {baseline}:
        raise UsageError("arms.drop leaves no arm to compare; drop fewer")
    return replace(plan, arms=arms, runs=tuple(run for run in plan.runs if run.arm not in gone))


def _dropped(entry: Entry, arms: Sequence[ArmSpec]) -> set[str]:
    if isinstance(entry, str):
        known = [arm.name for arm in arms]
        if entry not in known:
            raise UsageError(f"arms.drop: no arm is called {entry!r}; {nearest(entry, known)}")
        return {entry}
    cells = [(cell, arm.name) for arm in arms for cell in (arm.factors, *arm.also)]
    return {name for _, name in cells_within("arms.drop", entry, cells)}


def contrasts_left(
    file: ExperimentFile, arms: Sequence[ArmSpec], left: Sequence[ArmSpec]
) -> tuple[ContrastSpec, ...]:
    """The file's contrasts over the arms that are left; what is wrong over all arms comes first.

    Raises:
        UsageError: as `resolve_contrasts`; how to go on, where the arms left out are missing.
    """
    over_all = resolve_contrasts(file.contrasts, arms)
    if len(left) == len(arms):
        return over_all
    try:
        return resolve_contrasts(file.contrasts, left)
    except UsageError as error:
        where, _, reason = str(error).partition(": ")
        raise UsageError(f"{where}: {_way_out(where, file)} ({reason})") from None


def _way_out(where: str, file: ExperimentFile) -> str:
    said = f"not to be told without what arms.drop leaves out; take it out as well, '~{where}'"
    name = where.removeprefix("contrasts.")
    asked = {name: file.contrasts[name]} if name in file.contrasts else {}
    if file.arms.choose and (declared_interactions(asked) or declared_subsets(asked)):
        said += ", and list the arms in arms.cells, as arms.choose would choose others without it"
    return said


def describe_dropped(entries: Sequence[Entry]) -> Iterator[FindingSpec]:
    """What was left out, wherever results are read."""
    if entries:
        said = "; ".join(one if isinstance(one, str) else levels_said(one) for one in entries)
        text = f"left out by arms.drop: {said}. What is found holds for the arms that are left"
        yield FindingSpec(level="limit", subject="arms left out", text=text)
