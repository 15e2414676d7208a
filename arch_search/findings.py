"""What a comparison found, in words: never "no effect" for what could not be resolved."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from arch_search.plan_spec import ContrastSpec
from arch_search.statistics.blocked import BlockedModel
from arch_search.statistics.linear import ONE_SEED, Estimate, Family, Fit, estimate
from arch_search.statistics.permutation import PermutationCheck
from arch_search.wording import counted, percentage, signed


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmOutcome:
    """One arm's line in the comparison.

    `low` to `high` hold for all arms at once (95 %), and `p_simultaneous` is adjusted for all of
    them; `mean_low` to `mean_high` is the interval of this arm's own seeds. None: not enough seeds
    to say.
    """

    arm: str
    layout: str
    planned: int
    n: int
    failed: int  # a run that diverged or broke, or whose metric is not finite: an outcome
    unfinished: int  # running, waiting, or stopped from outside: may still be resumed
    mean: float | None
    sd: float | None
    mean_low: float | None
    mean_high: float | None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p_simultaneous: float | None = None
    p_holm: float | None = None
    p_equivalence: float | None = None
    permutation_p: float | None = None
    resolvable: float | None = None
    verdict: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ContrastOutcome:
    """One declared contrast.

    `low` to `high` hold for all declared contrasts at once (95 %); `p_simultaneous` is adjusted for
    all of them.
    """

    name: str
    family: str
    text: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    p_simultaneous: float | None = None
    p_holm: float | None = None
    p_equivalence: float | None = None
    permutation_p: float | None = None
    resolvable: float | None = None
    verdict: str = ""


def judged(found: Estimate | None) -> dict[str, float | None]:
    """What an outcome has of an estimate besides its value; all None without one."""
    names = ("low", "high", "p_simultaneous", "p_holm", "p_equivalence", "resolvable")
    return {name: getattr(found, name, None) for name in names}


def verdict(
    found: Estimate | None,
    *,
    better: int,
    margin: float | None = None,
    share: float | None = None,
    no_noise: str = ONE_SEED,
) -> str:
    """The finding in words. Not significant never reads as no effect.

    Equivalence is claimed if two one-sided tests at 5 %, adjusted for their family, place the value
    within the margin.
    """
    if found is None:
        return "not compared: no finished run that shares a seed with the baseline"
    if found.low is None or found.high is None:
        return f"not resolved: {no_noise}"
    inside = margin is not None and found.p_equivalence is not None and found.p_equivalence <= 0.05
    within = "" if share is None else f"{100 * share:.3g} %"
    if found.low > 0 or found.high < 0:
        sign = 1 if found.low > 0 else -1
        word = {0: "higher" if sign > 0 else "lower"}.get(
            better, "better" if sign == better else "worse"
        )
        return f"{word}, by less than the {within} that matters" if inside else word
    if inside:
        return f"equivalent within {within}"
    return f"not resolved: a true difference below {found.resolvable:.2g} is easily missed here"


def contrast_outcomes(
    declared: Sequence[ContrastSpec], fit: Fit, *, margin: float | None, share: float | None
) -> tuple[ContrastOutcome, ...]:
    """The declared contrasts, all in one family; one whose arms have no linked run is said so."""
    family = _estimable(declared, fit, margin)
    estimates = {e.name: e for e in family.estimates}
    outcomes = []
    for contrast in declared:
        found = estimates.get(contrast.name)
        missing = sorted(set(contrast.weights) - set(fit.arms))
        said = verdict(found, better=0, margin=margin, share=share, no_noise=fit.no_noise)
        outcomes.append(
            ContrastOutcome(
                name=contrast.name,
                family=contrast.family,
                text=contrast.text,
                value=found.value if found else None,
                **judged(found),
                verdict=f"not compared: no linked run of {', '.join(missing)}" if missing else said,
            )
        )
    return tuple(outcomes)


def estimable(declared: Sequence[ContrastSpec], arms: Sequence[str]) -> dict[str, dict[str, float]]:
    """The weights of those contrasts whose arms are all there."""
    return {c.name: c.weights for c in declared if set(c.weights) <= set(arms)}


def _estimable(declared: Sequence[ContrastSpec], fit: Fit, margin: float | None) -> Family:
    return estimate(fit, estimable(declared, fit.arms), margin=margin)


def contrast_sentences(outcomes: Sequence[ContrastOutcome]) -> Iterator[str]:
    """What the declared contrasts say, the resolved ones first."""
    for outcome in outcomes:
        if outcome.low is not None and outcome.high is not None and outcome.low * outcome.high > 0:
            yield (
                f"{outcome.name} ({outcome.text}): {outcome.verdict}, {signed(outcome.value)} "
                f"[{signed(outcome.low)}, {signed(outcome.high)}]."
            )
    same = [o.name for o in outcomes if o.verdict.startswith("equivalent")]
    if same:
        yield f"Declared contrasts shown to be smaller than what matters: {', '.join(same)}."
    if open_ := [o for o in outcomes if o.verdict.startswith("not resolved")]:
        listed = ", ".join(
            f"{o.name} (could have seen {o.resolvable:.2g})" if o.resolvable else o.name
            for o in open_
        )
        yield f"Declared contrasts that are not resolved: {listed}."


def held_up_sentences(
    name: str, declared: Sequence[ContrastSpec], arms: Sequence[ArmOutcome]
) -> Iterator[str]:
    """Which arms of experiment `name` keep the rest of a contrast from being compared, if any."""
    lost = {o.arm for o in arms if o.failed == o.planned}
    held = [contrast for contrast in declared if _has_more(contrast, lost)]
    if not held or all(o.difference is None for o in arms):
        return
    names = [o.arm for o in arms if o.arm in lost and any(o.arm in c.weights for c in held)]
    yield (
        f"Not compared since every run of an arm failed: {', '.join(c.name for c in held)}. "
        "Submitted without such arms and under another name, what the others can still tell is "
        f"compared from the same runs: name={name}-rest 'arms.drop=[{', '.join(names)}]'. That "
        "choice is then made after the fact."
    )


def _has_more(contrast: ContrastSpec, lost: set[str]) -> bool:
    """Whether a contrast has lost arms and still has some on both sides."""
    left = [weight for arm, weight in contrast.weights.items() if arm not in lost]
    return 0 < len(left) < len(contrast.weights) and min(left) < 0 < max(left)


def sentences(
    outcomes: tuple[ArmOutcome, ...],
    model: BlockedModel | None,
    permutation: PermutationCheck | None,
    baseline: str,
    margin: float | None,
    share: float | None,
) -> Iterator[str]:
    if model is None:
        yield f"{baseline} has no finished run: there is nothing to compare with."
    elif all(o.difference is None for o in outcomes):
        yield f"No arm shares a seed with {baseline} yet: nothing can be compared."
    elif model.no_noise and model.no_noise != ONE_SEED:
        yield (
            f"No interval and no p-value: {model.no_noise}. What differs may differ by chance; "
            "run more seeds, or read a finer metric."
        )
    elif model.residual_sd is None:
        yield (
            "Each arm has one seed, so nothing tells a difference from the noise between seeds. "
            "Run at least two seeds (five are better)."
        )
    else:
        yield from _resolution(outcomes, model, permutation, margin, share)
    for outcome in outcomes:
        if outcome.failed:
            yield (
                f"{outcome.arm}: {outcome.failed} of {outcome.planned} runs failed. That is an "
                "outcome of this arm; its mean covers only the runs that ended well."
            )
        if outcome.unfinished:
            yield (
                f"{outcome.arm}: {outcome.unfinished} of {outcome.planned} runs are not finished; "
                "what stands here may still change."
            )


def _resolution(
    outcomes: tuple[ArmOutcome, ...],
    model: BlockedModel,
    permutation: PermutationCheck | None,
    margin: float | None,
    share: float | None,
) -> Iterator[str]:
    for word in ("better", "worse", "higher", "lower"):
        seen = [o for o in outcomes if o.verdict.split(",")[0] == word]
        if seen:
            listed = ", ".join(f"{o.arm} ({signed(o.difference)})" for o in seen)
            yield f"{word.capitalize()} than the baseline: {listed}."
    equivalent = [o.arm for o in outcomes if o.verdict.startswith("equivalent")]
    if equivalent:
        within = f"{100 * (share or 0):.3g} %"
        yield f"Equivalent to the baseline within {within}: {', '.join(equivalent)}."
    open_ = [o.arm for o in outcomes if o.verdict.startswith("not resolved")]
    if open_:
        yield (
            f"Not resolved: {', '.join(open_)}. This is no evidence that nothing differs: "
            "the intervals show what remains possible."
        )
    visible = [o.resolvable for o in outcomes if o.resolvable is not None]
    if visible:
        base = next(mean.mean for mean in model.means if mean.arm == model.baseline)
        yield (
            f"With {counted(model.df, 'degree')} of freedom and a noise of {model.residual_sd:.2g} "
            "a run once seeds are blocks, this design finds a true difference of "
            f"{_sizes(visible, abs(base))} four times in five."
        )
        if open_ and margin is not None and share is not None and max(visible) > margin:
            yield (
                f"The smallest effect that matters, {100 * share:.3g} % ({margin:.2g}), is smaller "
                "than that: more seeds are needed to settle it."
            )
    leaning = [o for o in outcomes if _found(o) and (o.permutation_p or 0) > 0.05]
    if leaning and permutation is not None and permutation.smallest_p <= 0.05:
        listed = ", ".join(f"{o.arm} (p = {o.permutation_p:.2g})" for o in leaning)
        yield f"The permutation check does not confirm {listed}: that rests on normal noise."
    if permutation is not None and permutation.smallest_p > 0.05:
        yield (
            "The permutation check cannot reach 5 % with so few seeds: its smallest possible "
            f"p-value is {permutation.smallest_p:.2g}. The intervals rest on normal noise."
        )


def _sizes(found: Sequence[float], base: float) -> str:
    """'0.016 to 0.023 (0.36 to 0.51 % of the baseline)', or one number where they hardly differ."""
    ends = [max(found)] if max(found) < 1.1 * min(found) else [min(found), max(found)]
    sizes = " to ".join(f"{end:.2g}" for end in ends)
    if not base:
        return sizes
    return f"{sizes} ({' to '.join(percentage(end / base) for end in ends)} % of the baseline)"


def _found(outcome: ArmOutcome) -> bool:
    """Whether the interval leaves out zero."""
    return outcome.low is not None and outcome.high is not None and outcome.low * outcome.high > 0
