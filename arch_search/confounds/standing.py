"""What is equal in all arms and still bounds what their comparison can mean."""

from collections.abc import Iterator, Sequence

from arch_search.confounds.derived import ArmFacts, compared_kinds
from arch_search.experiment import ExperimentFile
from arch_search.plan_spec import FindingSpec
from arch_search.wording import listed, percent

EMBEDDING_SHARE = 0.1  # of the parameters, from which tying them changes a model's size


def standing_limits(
    file: ExperimentFile, facts: Sequence[ArmFacts], *, seeds: int, tuned: bool
) -> Iterator[FindingSpec]:
    """One seed; one learning rate for unlike mixers; what tied embeddings do to the size."""
    if seeds == 1 and len(facts) > 1:
        text = "one seed: no difference between arms can be told from noise; give at least 2"
        yield FindingSpec(level="warning", subject="one seed", text=text)
    yield from _one_learning_rate(file, facts, tuned=tuned)
    yield from _tied(facts)


def _one_learning_rate(
    file: ExperimentFile, facts: Sequence[ArmFacts], *, tuned: bool
) -> Iterator[FindingSpec]:
    kinds = compared_kinds(facts)
    rates = {f.arm.train.optimiser.learning_rate for f in facts}
    if len(kinds) > 1 and len(rates) == 1 and not tuned and file.tune is None:
        text = (
            f"one learning rate, {rates.pop():g}, for {listed(kinds, shown=6)}: what looks like a "
            "better mixer may be one that this rate suits. To give each its own: "
            "tune: {learning_rate: […], per: with}"
        )
        yield FindingSpec(level="limit", subject="one learning rate", text=text)


def _tied(facts: Sequence[ArmFacts]) -> Iterator[FindingSpec]:
    tied = {f.arm.model.tie_embeddings for f in facts}
    if len(tied) > 1:
        return  # named as an unequal setting
    model, parameters = facts[0].arm.model, facts[0].arm.counts["parameters"]
    table = model.width * model.vocabulary
    if table / parameters < EMBEDDING_SHARE:
        return
    is_tied = tied.pop()
    word, other, sign = ("tied", "untied", 1) if is_tied else ("untied", "tied", -1)
    text = (
        f"embeddings are {word} in all arms; {other} they would change each model by "
        f"{sign * table:+,} parameters ({percent(sign * table / parameters)}): tied or untied is "
        "part of any size that is quoted"
    ).replace("-", "−")
    yield FindingSpec(level="limit", subject="tied or untied", text=text)
