"""Which measured speeds may be ranked: those of runs that had their device to themselves."""

from collections.abc import Sequence

from arch_search.errors import UsageError
from arch_search.records import RunRecord

SPEEDS = ("throughput/", "train/seconds")


def refuse_shared_speed(metric: str, runs: Sequence[RunRecord]) -> None:
    """Raises UsageError for a speed among whose runs one had only a share of its GPU."""
    if not metric.startswith(SPEEDS):
        return
    shares = {share for run in runs if (share := device_share(run)) < 1}
    if shares:
        raise UsageError(
            f"{metric} is not to be ranked: runs shared a GPU (they had {min(shares):.3g} of it "
            "each), so it says how much the others did; arch-search bench throughput FILE measures "
            "each arm on a device of its own"
        )


def device_share(run: RunRecord) -> float:
    """The share of its GPU that a finished run had; 1 where it had no other beside it by plan."""
    environment = (run.result or {}).get("environment", {})
    return float(environment.get("device_share", 1.0))
