"""How much seeds vary: as the file says, or as earlier experiments of the same base measured."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from arch_search.compare import metric_table
from arch_search.errors import UsageError
from arch_search.records import Experiment, read_experiment
from arch_search.spec import ArmSpec, ContrastSpec, NoiseSpec, PrimarySpec, ResolutionSpec, RunSpec
from arch_search.statistics.blocked import fit_blocked
from arch_search.statistics.power import resolvable_in_noise, seeds_to_resolve
from arch_search.storage import Root


def find_noise(
    given: float | None, arms: Sequence[ArmSpec], metric: str, name: str, root: Root
) -> NoiseSpec | None:
    """The noise given in the file; else pooled over other experiments under the root; else None."""
    if given is not None:
        return NoiseSpec(share=given, source="given in the file")
    base = _base(arms[0])
    measured: list[tuple[str, float, int]] = []
    seen: set[str] = set()
    for folder in root.experiments():
        if folder.name == name:
            continue
        try:
            experiment = read_experiment(folder.name, root)
        except UsageError:  # written by another version
            continue
        hashes = {run.planned.hash for run in experiment.trained}
        if not hashes <= seen and (found := _residual(experiment, base, metric)) is not None:
            measured.append((folder.name, *found))
            seen |= hashes
    if not measured:
        return None
    df = sum(degrees for _, _, degrees in measured)
    pooled = np.sqrt(sum(share**2 * degrees for _, share, degrees in measured) / df)
    names = ", ".join(name for name, _, _ in measured)
    return NoiseSpec(share=float(pooled), source=f"measured in {names}", df=df)


def _base(spec: ArmSpec | RunSpec) -> tuple[Any, ...]:
    """What noise depends on first of all: the data, the length of training, the model's size."""
    return spec.data, spec.train.tokens, spec.model.width, len(spec.model.layers)


def _residual(
    experiment: Experiment, base: tuple[Any, ...], metric: str
) -> tuple[float, int] | None:
    """The residual deviation over the mean, and its degrees of freedom, of runs of this base."""
    arms = [arm.name for arm in experiment.plan.arms if _base(arm) == base]
    try:
        table = metric_table(experiment, metric)
        table = table.loc[table["arm"].isin(arms)]
        here = list(table["arm"])
        if not here:
            return None
        model = fit_blocked(table, baseline=str(here[0]))
    except (UsageError, ValueError):  # nothing measured, or arms without a common seed
        return None
    centre = abs(float(np.mean(table["value"].to_numpy(float))))
    if model.df < 1 or not model.residual_sd or not centre:
        return None
    return model.residual_sd / centre, model.df


def find_resolution(
    contrasts: Sequence[ContrastSpec],
    arms: Sequence[ArmSpec],
    *,
    seeds: int,
    noise: NoiseSpec | None,
    primary: PrimarySpec,
) -> tuple[ResolutionSpec, ...]:
    """What each contrast can tell, all of them at once; every arm against the baseline if none."""
    asked = contrasts or against_baseline(arms)
    if not asked:
        return ()
    names = [arm.name for arm in arms]
    weights = np.array([[c.weights.get(name, 0.0) for name in names] for c in asked])
    found = resolvable_in_noise(weights, seeds)
    if found is None:
        return ()
    effect = primary.smallest_effect
    wanted = effect / noise.share if noise and effect else None
    return tuple(
        ResolutionSpec(
            contrast=contrast.name,
            in_noise=float(found[i]),
            share=float(found[i] * noise.share) if noise else None,
            seeds_wanted=seeds_to_resolve(weights, i, wanted) if wanted else None,
        )
        for i, contrast in enumerate(asked)
    )


def against_baseline(arms: Sequence[ArmSpec]) -> tuple[ContrastSpec, ...]:
    """What is compared where the file declares no contrast."""
    base = next((arm for arm in arms if arm.is_baseline), arms[0])
    return tuple(
        ContrastSpec(
            name=f"{arm.name} - {base.name}",
            family="against the baseline",
            text=f"{arm.name} minus {base.name}",
            weights={arm.name: 1.0, base.name: -1.0},
        )
        for arm in arms
        if arm is not base
    )
