"""Chains of arms, each one change away from the one before it: the steps of a waterfall.

    contrasts: {steps: {chain: [rnn, identity, gates, m2rnn]}}

What a step is worth depends on where in the chain it stands, so a chain is declared as a whole.
Free of torch.
"""

import itertools
from collections.abc import Iterator, Sequence

from arch_search.errors import UsageError
from arch_search.experiment import nearest
from arch_search.plan_spec import ContrastSpec


def chain_contrasts(
    family: str, names: Sequence[str], known: Sequence[str]
) -> Iterator[ContrastSpec]:
    """Each arm minus the one before it, and the last minus the first.

    Raises:
        UsageError: an unknown arm, one that comes twice, or fewer than three.
    """
    for name in names:
        if name not in known:
            raise UsageError(
                f"contrasts.{family}: no arm is called {name!r}; {nearest(name, known)}"
            )
    if len(set(names)) < max(len(names), 3):
        raise UsageError(
            f"contrasts.{family}: a chain is three arms or more, each once; got {', '.join(names)}"
        )
    for before, after in [*itertools.pairwise(names), (names[0], names[-1])]:
        yield ContrastSpec(
            name=f"{family}: {after} - {before}",
            family=family,
            text=f"{after} minus {before}",
            weights={after: 1.0, before: -1.0},
        )


def declared_chains(
    contrasts: Sequence[ContrastSpec],
) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Each family that is a chain: its arms in order, and the names of its contrasts."""
    found = {}
    for family in dict.fromkeys(contrast.family for contrast in contrasts):
        own = [contrast for contrast in contrasts if contrast.family == family]
        steps = [step for contrast in own if (step := _step(contrast)) is not None]
        if len(steps) < len(own) or len(steps) < 3:
            continue
        arms = [steps[0][0], *(after for _, after in steps[:-1])]
        if steps == [*itertools.pairwise(arms), (arms[0], arms[-1])]:
            found[family] = (tuple(arms), tuple(contrast.name for contrast in own))
    return found


def _step(contrast: ContrastSpec) -> tuple[str, str] | None:
    """(before, after) of a contrast that sets one arm against one."""
    after = [arm for arm, weight in contrast.weights.items() if weight == 1]
    before = [arm for arm, weight in contrast.weights.items() if weight == -1]
    single = len(contrast.weights) == 2 and len(after) == len(before) == 1
    return (before[0], after[0]) if single else None
