"""What other budgets say of the arms, and where they change what equal tokens say."""

from collections.abc import Iterator, Sequence

from arch_search.budgets import NO_CURVE, Reading, equal_flops, equal_seconds, schedule_sentence
from arch_search.findings import ArmOutcome
from arch_search.measured_speeds import read_speeds
from arch_search.metric_names import label
from arch_search.records import Experiment
from arch_search.spec import ScheduleSpec
from arch_search.wording import percentage, signed


def read_at_equal_cost(experiment: Experiment) -> tuple[tuple[Reading, ...], str]:
    """The readings that there are, and why there is none at equal seconds ("" if there is)."""
    speeds, reason = read_speeds(experiment)
    seconds = None
    if speeds and speeds.spread <= speeds.uncertain:
        known = f"±{percentage(speeds.uncertain)} % ({speeds.source})"
        reason = f"speeds are known to {known}, and arms differ by no more than that"
    elif speeds:
        seconds = equal_seconds(experiment, speeds)
        reason = "" if seconds else NO_CURVE
    found = (equal_flops(experiment), seconds)
    return tuple(reading for reading in found if reading is not None), reason


def reading_sentences(
    outcomes: Sequence[ArmOutcome], readings: Sequence[Reading], schedules: Sequence[ScheduleSpec]
) -> Iterator[str]:
    """Where a reading finds another sign than equal tokens, or none, or one where they had none.

    For metrics that are better the lower, as the curves are.
    """
    if readings:
        yield schedule_sentence(schedules)
    at_tokens = {o.arm: _finding(o.low, o.high) for o in outcomes}
    for reading in readings:
        changed = []
        for found in reading.model.differences:
            here, there = _finding(found.low, found.high), at_tokens.get(found.name, "open")
            if here != there:
                changed.append(
                    f"{found.name} is {_IN_WORDS[here]} ({signed(found.value)} "
                    f"[{signed(found.low)}, {signed(found.high)}], read at "
                    f"{100 * reading.shares[found.name]:.0f} % of its run), at equal tokens "
                    f"{_IN_WORDS[there]}"
                )
        what = f"At equal {reading.unit}, in {label(reading.metric)}"
        if changed:
            yield f"{what}: {'; '.join(changed)}."
        else:
            yield f"{what}, every finding is the one at equal tokens."


_IN_WORDS = {"better": "better", "worse": "worse", "open": "not told from the baseline"}


def _finding(low: float | None, high: float | None) -> str:
    if low is None or high is None or low <= 0 <= high:
        return "open"
    return "better" if high < 0 else "worse"
