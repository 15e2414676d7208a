"""What the plan warned of, said again wherever results are read."""

from arch_search.plan_spec import FindingSpec, Plan


def plan_warnings(plan: Plan) -> tuple[str, ...]:
    """Rival explanations of a difference, aliased factors above all, as the plan named them."""
    found = (finding for finding in plan.findings if finding.level == "warning")
    return tuple(f"The plan warned: {one.text.removesuffix('.')}." for one in found)


def plan_limits(plan: Plan) -> tuple[str, ...]:
    """What is equal in all arms and bounds what they can show."""
    return tuple(as_sentence(one) for one in plan.findings if one.level == "limit")


def as_sentence(finding: FindingSpec) -> str:
    """A finding's text with a capital and a full stop."""
    return f"{finding.text[0].upper()}{finding.text[1:].removesuffix('.')}."
