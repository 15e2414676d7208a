"""Finds runs that live but do no step: a deadlock, a suspended process, a dead network disk."""

import time
from dataclasses import dataclass, field

from arch_search.storage import AttemptFolder

LOOK_SECONDS = 2.0
MOST_BETWEEN_LOOKS = 10.0  # a driver that slept itself has not watched for longer than this


@dataclass(slots=True)
class _Seen:
    attempt: int
    ticks: int
    seconds: float = 0.0


@dataclass(kw_only=True, slots=True)
class Watchdog:
    """Counts how long each run has shown no progress, by this process' own clock.

    Only what was watched counts: neither the hosts' clocks nor a laptop's sleep can add to it.
    """

    stall_seconds: float  # 0: nothing is ever stalled
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _looked: dict[str, float] = field(default_factory=dict)

    def is_stalled(self, run_hash: str, attempt: AttemptFolder) -> bool:
        """Whether the attempt has shown nothing new for `stall_seconds`. Cheap to call often."""
        now = time.monotonic()
        passed = now - self._looked.get(run_hash, 0.0)
        if not self.stall_seconds or passed < LOOK_SECONDS:
            return False
        self._looked[run_hash] = now
        ticks, seen = attempt.lease().get("ticks", 0), self._seen.get(run_hash)
        if seen is None or (seen.attempt, seen.ticks) != (attempt.number, ticks):
            self._seen[run_hash] = _Seen(attempt.number, ticks)
            return False
        seen.seconds += min(passed, MOST_BETWEEN_LOOKS)
        return seen.seconds >= self.stall_seconds
