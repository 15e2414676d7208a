"""What differs between the arms besides their factors, found before anything runs, in words."""

from collections.abc import Sequence

from arch_search.confounds.aliasing import aliased_factors, bundled_levels
from arch_search.confounds.balance import unbalanced_contrasts
from arch_search.confounds.branches import unequal_branches
from arch_search.confounds.derived import ArmFacts, derive
from arch_search.confounds.layouts import aliased_layouts, places
from arch_search.confounds.settings import unequal_options, unequal_settings
from arch_search.confounds.sizes import unequal_sizes, unequal_states
from arch_search.confounds.standing import standing_limits
from arch_search.confounds.starts import unequal_decay, unequal_starts
from arch_search.experiment import ExperimentFile
from arch_search.plan_spec import ArmSpec, ContrastSpec, FindingSpec

__all__ = ["find_confounds"]

LEVELS = ("warning", "residue", "limit")


def find_confounds(
    file: ExperimentFile,
    arms: Sequence[ArmSpec],
    *,
    seeds: int,
    tuned: bool = False,
    contrasts: Sequence[ContrastSpec] = (),
) -> tuple[FindingSpec, ...]:
    """Everything set or derived that differs besides the factors; warnings first.

    Args:
        seeds: how many each arm has.   tuned: learning rates were chosen for each mixer.
        contrasts: those of the file, resolved.
    """
    facts: list[ArmFacts] = [derive(arm) for arm in arms]
    found = [
        *aliased_factors(arms),
        *aliased_layouts(arms),
        *bundled_levels(file),
        *unbalanced_contrasts(file, contrasts, arms),
        *unequal_settings(file, arms, tuned=tuned),
        *unequal_options(file, arms),
        *unequal_sizes(file, arms),
        *unequal_states(file, facts),
        *unequal_decay(facts),
        *unequal_starts(facts),
        *unequal_branches(facts),
        *places(arms),
        *standing_limits(file, facts, seeds=seeds, tuned=tuned),
    ]
    return tuple(sorted(found, key=lambda finding: LEVELS.index(finding.level)))
