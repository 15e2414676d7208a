"""Sizes that follow from the arms: parameters, FLOPs and state, and when they are a confound.

A difference that a factor brings with it is a residue, stated with its size. It becomes a warning
where size alone could make the difference under study: see docs/decisions.md.
"""

from collections.abc import Iterator, Sequence

from arch_search.confounds.derived import ArmFacts, compared_kinds
from arch_search.experiment import ExperimentFile
from arch_search.plan_spec import ArmSpec, FindingSpec
from arch_search.wording import grouped, listed, percent, share

PARAMETER_EXPONENT = 0.076  # of the loss in parameters, Kaplan et al. 2020 (arXiv 2001.08361)
SMALLEST_EFFECT = 0.003  # assumed where the file declares none
STATE_RATIO = 1.5  # between replaced layers, from which the state is named as a rival explanation
STATED = 0.0005  # smaller relative differences are not worth a line


def unequal_sizes(file: ExperimentFile, arms: Sequence[ArmSpec]) -> Iterator[FindingSpec]:
    """Parameters and FLOPs a token against the baseline's, or the first arm's."""
    base = next((arm for arm in arms if arm.is_baseline), arms[0])
    yield from _parameters(file, base, arms)
    flops = _relative(base, arms, "forward_flops_per_token")
    if flops:
        text = f"FLOPs a token differ from {base.name}: {_extremes(flops)}"
        yield FindingSpec(level="residue", subject="flops", text=text)


def _parameters(
    file: ExperimentFile, base: ArmSpec, arms: Sequence[ArmSpec]
) -> Iterator[FindingSpec]:
    differ = _relative(base, arms, "parameters")
    if not differ:
        return
    largest = max(map(abs, differ.values()))
    worth = PARAMETER_EXPONENT * largest
    effect = file.primary.smallest_effect or SMALLEST_EFFECT
    text = f"parameters differ from {base.name} ({_count(base)}): {_extremes(differ)}"
    if worth < effect or "parameters" in file.report_residue:
        yield FindingSpec(level="residue", subject="parameters", text=text)
        return
    matter = (
        "on matter here" if file.primary.smallest_effect else "on may matter (none is declared)"
    )
    text += (
        f". By the usual power law that alone is worth about {share(worth)} of the loss, and "
        f"effects from {share(effect)} {matter}. Hold them (hold: {{parameters: 0.5%, by: "
        "replaced.mlp.width}) or accept it (report_residue: [parameters])"
    )
    yield FindingSpec(level="warning", subject="parameters", text=text)


def _count(arm: ArmSpec) -> str:
    return f"{arm.counts['parameters']:,.0f}"


def _relative(base: ArmSpec, arms: Sequence[ArmSpec], name: str) -> dict[str, float]:
    """Arms whose count is not that of the base, with the relative difference."""
    reference = base.counts[name]
    every = {arm.name: arm.counts[name] / reference - 1 for arm in arms if arm is not base}
    return {arm: found for arm, found in every.items() if abs(found) >= STATED}


def _extremes(shares: dict[str, float]) -> str:
    """The smallest and the largest, each with its arm."""
    low, high = min(shares, key=lambda a: shares[a]), max(shares, key=lambda a: shares[a])
    if low == high or len(grouped(shares)) == 1:
        return f"{percent(shares[low])} in {listed(shares)}"
    return f"{percent(shares[low])} in {low} to {percent(shares[high])} in {high}"


def unequal_states(file: ExperimentFile, facts: Sequence[ArmFacts]) -> Iterator[FindingSpec]:
    """State elements a layer of the mixers that arms exchange for one another."""
    sizes = {
        kind: sorted({layer.state_elements for f in facts for layer in f.of_kind(kind)})
        for kind in compared_kinds(facts)
        if not any(layer.grows for f in facts for layer in f.of_kind(kind))
    }
    single = {kind: found[0] for kind, found in sizes.items() if len(found) == 1}
    for kind, found in sizes.items():
        if len(found) > 1:
            text = f"{kind} holds {found[0]:,} to {found[-1]:,} state elements a layer"
            yield FindingSpec(level="residue", subject="state", text=text)
    if len(set(single.values())) > 1:
        yield _state_finding(file, single)


def _state_finding(file: ExperimentFile, sizes: dict[str, int]) -> FindingSpec:
    ordered = sorted(sizes.items(), key=lambda item: item[1])
    against = ", ".join(
        f"{size} in {listed(kinds)}"
        for size, kinds in sorted(
            grouped(dict(ordered)).items(), key=lambda item: int(item[0].replace(",", ""))
        )
    )
    smallest, largest = ordered[0][1], ordered[-1][1]
    text = f"recurrent state, in elements a layer: {against}"
    held = any(hold.state is not None for hold in file.hold)
    accepted = "state" in file.report_residue or "state" in file.arms.vary
    if held or accepted or largest <= STATE_RATIO * smallest:
        return FindingSpec(level="residue", subject="state", text=text)
    text += (
        f" ({largest / max(smallest, 1):,.1f} times). A difference between these mixers may be one "
        "of state size. Hold it (hold: {state: 2%, by: replaced.key_dim}), vary it, or accept it "
        "(report_residue: [state])"
    )
    return FindingSpec(level="warning", subject="state", text=text)
