"""How much seeds vary: as the file says, or as earlier experiments of the same base measured."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from arch_search.errors import UsageError
from arch_search.factors import model_matrix, rank
from arch_search.metric_names import is_yes_or_no
from arch_search.plan_spec import ArmSpec, ContrastSpec, NoiseSpec, PrimarySpec, ResolutionSpec
from arch_search.records import Experiment, read_experiment
from arch_search.spec import RunSpec
from arch_search.statistics.power import resolvable_in_noise, seeds_to_resolve
from arch_search.storage import Root

ROUNDING = 1e-12  # a smaller share means equal runs, which say nothing of noise


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
            if all(_base(run.spec) != base for run in folder.plan().runs):
                continue  # without reading what a thousand runs of it recorded
            experiment = read_experiment(folder.name, root)
        except UsageError:  # written by another version, or damaged
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
    """The residual deviation over the mean, and its degrees of freedom, of runs of this base.

    What is left of the metric after a constant for each arm and one for each seed.
    """
    found = [
        (run.arm.name, run.planned.seed, float(run.metrics[metric]))
        for run in experiment.trained
        if _base(run.arm) == base and math.isfinite(run.metrics.get(metric, math.nan))
    ]
    if not found:
        return None
    cells = [{"arm": arm, "seed": seed} for arm, seed, _ in found]
    values = np.array([value for _, _, value in found])
    matrix = model_matrix(cells, ["arm", "seed"])
    left = values - matrix @ (np.linalg.pinv(matrix) @ values)
    df, centre = len(values) - rank(matrix), abs(float(values.mean()))
    if df < 1 or not centre:
        return None
    share = math.sqrt(float(left @ left) / df) / centre
    return (share, df) if share > ROUNDING else None


def find_resolution(
    contrasts: Sequence[ContrastSpec],
    arms: Sequence[ArmSpec],
    *,
    seeds: int,
    noise: NoiseSpec | None,
    primary: PrimarySpec,
) -> tuple[ResolutionSpec, ...]:
    """What each contrast can tell, all of them at once; every arm against the baseline if none.

    Nothing where the metric is yes or no: see `arch_search.outcomes.rate_resolution`.
    """
    asked = contrasts or against_baseline(arms)
    if not asked or is_yes_or_no(primary.metric):
        return ()
    names = [arm.name for arm in arms]
    weights = np.array([[c.weights.get(name, 0.0) for name in names] for c in asked])
    found = resolvable_in_noise(weights, seeds)
    if found is None:
        return ()
    effect = primary.smallest_effect
    wanted = effect / noise.share if noise and effect else None
    alike = {round(float(size), 9): i for i, size in enumerate(found)}  # need the same seeds
    seeds_for = {
        size: seeds_to_resolve(weights, i, wanted) if wanted else None for size, i in alike.items()
    }
    return tuple(
        ResolutionSpec(
            contrast=contrast.name,
            in_noise=float(found[i]),
            share=float(found[i] * noise.share) if noise else None,
            seeds_wanted=seeds_for[round(float(found[i]), 9)],
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
