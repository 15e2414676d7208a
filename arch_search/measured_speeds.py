"""How fast each arm trains with a device to itself, by the throughput lane's record. No torch."""

from dataclasses import dataclass
from typing import Any

from arch_search.plan_spec import ArmSpec
from arch_search.records import Experiment
from arch_search.storage import Root
from arch_search.throughput.record import read_record

MEASURE = "arch-search bench throughput FILE measures them"


@dataclass(frozen=True, kw_only=True, slots=True)
class Speeds:
    """Tokens a second of whole training steps, for each arm that was measured.

    uncertain: the widest 95 % interval's half, as a share.   source: device and day, in words.
    """

    tokens_per_second: dict[str, float]
    uncertain: float
    source: str

    @property
    def spread(self) -> float:
        """How much faster the fastest arm is than the slowest, as a share."""
        return max(self.tokens_per_second.values()) / min(self.tokens_per_second.values()) - 1


def read_speeds(experiment: Experiment) -> tuple[Speeds | None, str]:
    """The speeds of an experiment's arms; or None, and why there are none to rank by."""
    root = Root(experiment.folder.path.parent.parent)
    record = read_record(root, experiment.plan.name)
    if record is None:
        return None, f"no speeds of these arms were measured with a device to itself; {MEASURE}"
    if not record.get("rankable", True):
        return None, f"another process used the device while speeds were measured; {MEASURE} anew"
    arms = {arm.name: arm for arm in experiment.plan.arms}
    found = {n: r for n, r in record["arms"].items() if n in arms and "tokens_per_second" in r}
    if stale := [name for name, row in found.items() if not _is_of(row, arms[name])]:
        return (
            None,
            f"the speeds on record are of other models ({', '.join(stale)}); {MEASURE} anew",
        )
    if missing := [name for name in arms if name not in found]:
        return None, f"the record has no speed of {', '.join(missing)}; {MEASURE}"
    base = found.get(str(record.get("baseline")))
    each = {name: _speed(row, base) for name, row in found.items()}
    devices = ", ".join(dict.fromkeys(str(row["device"]) for row in found.values()))
    day = f", {record['measured'][:10]}" if "measured" in record else ""
    return Speeds(
        tokens_per_second={name: speed for name, (speed, _) in each.items()},
        uncertain=max(share for _, share in each.values()),
        source=f"{devices}{day}",
    ), ""


def _speed(row: dict[str, Any], base: dict[str, Any] | None) -> tuple[float, float]:
    """Tokens a second, and half of its 95 % interval as a share.

    By the ratio to the record's baseline where it is known: arms took turns, so a ratio holds
    better than either of its speeds.
    """
    if base is not None and "ratio" in row:
        speed = base["tokens_per_second"] * row["ratio"]
        return float(speed), (row["ratio_high"] - row["ratio_low"]) / 2 / row["ratio"]
    speed = float(row["tokens_per_second"])
    return speed, (row["high"] - row["low"]) / 2 / speed


def _is_of(row: dict[str, Any], arm: ArmSpec) -> bool:
    """Whether a speed is of this very arm, as far as the record says what it was of."""
    known = {
        "layout": arm.layout,
        "parameters": arm.counts.get("parameters"),
        "length": arm.data.sequence_length,
    }
    return all(row.get(key, value) == value for key, value in known.items())
