"""Contrasts of some arms with others (`of`, `minus`) that differ in more than what they name."""

from collections.abc import Iterator, Sequence

from arch_search.confounds.aliasing import cells_of
from arch_search.experiment import ContrastFile, ExperimentFile
from arch_search.factors import key, levels_of, shared_factors
from arch_search.plan_spec import ArmSpec, ContrastSpec, FindingSpec
from arch_search.wording import listed, share, shown_value

ARM = "arm"  # a selection by an arm's name
UNEQUAL = 1e-9  # of shares that are sums of a few fractions


def unbalanced_contrasts(
    file: ExperimentFile, contrasts: Sequence[ContrastSpec], arms: Sequence[ArmSpec]
) -> Iterator[FindingSpec]:
    """A finding for each whose two sides do not have the levels of another factor equally often."""
    for contrast in contrasts:
        asked = file.contrasts.get(contrast.family)
        if not isinstance(asked, ContrastFile) or not isinstance(asked.of, dict):
            continue
        if not isinstance(asked.minus, dict):
            continue
        named = {*asked.of, *asked.minus}
        differ = [text for name, text in _unequal(contrast, arms) if name not in named]
        if named == {ARM} and len(differ) == 1:  # two arms by name: what they differ in is meant
            continue
        if differ:
            text = (
                f"contrast {contrast.name} compares arms that also differ in {listed(differ)}: "
                "their effects are part of it. Narrow it by 'within', add the combinations that "
                "are missing, or ask for the factor itself, which adjusts for the others"
            )
            yield FindingSpec(level="warning", subject="unbalanced contrast", text=text)


def _unequal(contrast: ContrastSpec, arms: Sequence[ArmSpec]) -> Iterator[tuple[str, str]]:
    """Each factor whose levels do not weigh nothing in sum, with how often each side has them."""
    involved = [arm for arm in arms if arm.name in contrast.weights]
    if any(arm.is_baseline or arm.is_control for arm in involved):
        return
    cells = {arm.name: cells_of([arm]) for arm in involved}
    every = [cell for some in cells.values() for cell in some]
    for factor in shared_factors(every):
        shares = {}
        for level in levels_of(every, factor):
            of, minus = (
                sum(
                    abs(weight)
                    * sum(key(cell[factor]) == key(level) for cell in cells[name])
                    / len(cells[name])
                    for name, weight in contrast.weights.items()
                    if (weight > 0) is positive
                )
                for positive in (True, False)
            )
            shares[shown_value(level)] = (of, minus)
        if any(abs(of - minus) > UNEQUAL for of, minus in shares.values()):
            said = ", ".join(
                f"{one} {share(of)} against {share(m)}" for one, (of, m) in shares.items()
            )
            yield factor, f"{factor} ({said})"
