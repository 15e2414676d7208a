"""Weight decay and starts that differ between mixers though nothing forces them to.

Where two mixers have the same part (a matrix that carries the state, a gate, a parameter of one
name) an unequal decay or start of it is a choice, and a rival explanation of what they differ in.
What only one of them has is part of what it is. A kind that itself takes several values is varied
on purpose, and is not compared with others.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from arch_search.confounds.derived import ArmFacts, MixerFacts, compared_kinds
from arch_search.plan_spec import FindingSpec
from arch_search.wording import by_value, grouped, listed

GAIN_RATIO = 1.25  # of recurrent gains that are worth a word
MEMORY_RATIO = 4.0  # of the slowest memories, likewise
SCALE_RATIO = 1.1  # of the starts of parameters of one name
SLOW = 20.0  # tokens: a gate that remembers less at its slowest is not slow


def unequal_decay(facts: Sequence[ArmFacts]) -> Iterator[FindingSpec]:
    """Parts that weight decay pulls on in one mixer and not in another."""
    if not _decay_is_on(facts):
        return
    carried = _single(facts, lambda mixer: mixer.recurrence_decayed)
    if len(set(carried.values())) > 1:
        yes, no = (
            [k for k, decayed in carried.items() if decayed is want] for want in (True, False)
        )
        text = (
            f"weight decay pulls on the recurrent weight W in {listed(yes)} but not in "
            f"{listed(no)}; set weight_decay of the blocks alike"
        )
        yield FindingSpec(level="warning", subject="decay of W", text=text)
    for name, values in _by_parameter(facts, lambda mixer: mixer.decay).items():
        if len(set(values.values())) > 1:
            text = f"weight decay pulls on {name} unequally: {by_value(values)}"
            yield FindingSpec(level="warning", subject=f"decay of {name}", text=text)


def _decay_is_on(facts: Sequence[ArmFacts]) -> bool:
    return any(f.arm.train.optimiser.weight_decay > 0 for f in facts)


def unequal_starts(facts: Sequence[ArmFacts]) -> Iterator[FindingSpec]:
    """Recurrences, gates and projections that do not start alike."""
    yield from _gains(facts)
    yield from _memories(facts)
    for name, values in _by_parameter(facts, lambda mixer: mixer.scale).items():
        if 0 < SCALE_RATIO * min(values.values()) < max(values.values()):
            text = f"{name} starts at unequal scales (root mean square): {by_value(values)}"
            yield FindingSpec(level="warning", subject=f"start of {name}", text=text)


def _gains(facts: Sequence[ArmFacts]) -> Iterator[FindingSpec]:
    gains = _single(facts, lambda mixer: mixer.recurrence_gain)
    starts = _single(facts, lambda mixer: mixer.recurrence_start)
    if len(gains) < 2 or max(gains.values()) <= GAIN_RATIO * min(gains.values()):
        return
    parts = "; ".join(
        f"{gain} in {listed(kinds)} ({starts.get(kinds[0], 'several starts')})"
        for gain, kinds in grouped(gains).items()
    )
    weak = [kind for kind, gain in gains.items() if gain < 0.5]
    text = f"the recurrent weight W starts with a gain (spectral radius) of {parts}"
    if weak:
        text += f": {listed(weak)} begin{'s' * (len(weak) == 1)} with almost no recurrence"
    yield FindingSpec(
        level="warning", subject="start of W", text=f"{text}; set weight_init of the blocks alike"
    )


def _memories(facts: Sequence[ArmFacts]) -> Iterator[FindingSpec]:
    memories = _single(facts, lambda mixer: mixer.memory)
    if len(memories) < 2:
        return
    slowest = {kind: memory.slowest for kind, memory in memories.items()}
    if max(slowest.values()) <= MEMORY_RATIO * min(slowest.values()):
        return
    shown = {
        kind: f"{_tokens(memory.median)} (slowest hundredth {_tokens(memory.slowest)}; "
        f"{memory.gate})"
        for kind, memory in memories.items()
    }
    text = f"at its start a state is remembered for this many tokens: {by_value(shown)}"
    fast = [kind for kind, tokens in slowest.items() if tokens < SLOW]
    if fast:
        text += f". {listed(fast)} start{'s' * (len(fast) == 1)} without a slow gate"
    yield FindingSpec(
        level="warning",
        subject="start of gates",
        text=f"{text}; set gate_bias or the gate of the blocks alike",
    )


def _tokens(value: float) -> str:
    return "without end" if math.isinf(value) else f"{value:,.0f}"


def _single(facts: Sequence[ArmFacts], read: Callable[[MixerFacts], Any]) -> dict[str, Any]:
    """A quantity by kind, for kinds that have it and have one value of it in all arms."""
    found: dict[str, list[Any]] = {}
    for kind in compared_kinds(facts):
        for f in facts:
            for mixer in f.of_kind(kind):
                if (value := read(mixer)) not in found.setdefault(kind, []):
                    found[kind].append(value)
    return {k: v[0] for k, v in found.items() if len(v) == 1 and v[0] not in (None, "")}


def _by_parameter(
    facts: Sequence[ArmFacts], read: Callable[[MixerFacts], Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """{parameter: {kind: value}} over names that at least two of the compared kinds share."""
    tables = _single(facts, lambda mixer: dict(read(mixer)))
    names = dict.fromkeys(name for table in tables.values() for name in table)
    by_name = {n: {k: t[n] for k, t in tables.items() if n in t} for n in names}
    return {name: values for name, values in by_name.items() if len(values) > 1}
