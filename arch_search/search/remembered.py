"""A study in memory whose sampler looks at the most telling trials alone.

TPE weighs every candidate against every trial, so that a proposal costs more the longer a sweep
runs. What it learns from is a handful of the best, against a density of all others that changes
little with their number. So beyond `history` trials it sees the best quarter of that many, and of
the others the newest.
"""

from collections.abc import Container, Iterable, Mapping, Sequence

from optuna.storages import InMemoryStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from arch_search.search.judge import ordered

EVERY = 25  # trials after which the choice is made anew
_BEST_SHARE = 4  # one in so many of those remembered is there for its merit


class RememberingStorage(InMemoryStorage):
    """One study. Shows what `remember` named and what came later; everything before that."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[int] = []
        self._newest = 0

    def remember(self, kept: Iterable[int], newest: int) -> None:
        """Show these of the older trials, and all from `newest` on; both by Optuna's numbers."""
        self._kept = sorted(number for number in kept if number < newest)
        self._newest = newest

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        if deepcopy or states == (TrialState.WAITING,):
            return super().get_all_trials(study_id, deepcopy=deepcopy, states=states)
        with self._lock:
            trials = self._studies[study_id].trials
            shown = [*(trials[number] for number in self._kept), *trials[self._newest :]]
        return [trial for trial in shown if states is None or trial.state in states]


def telling(
    trials: Mapping[int, FrozenTrial], directions: Sequence[StudyDirection], history: int
) -> tuple[set[int], int]:
    """Whom to remember for their merit, and the first of the newest; numbers as in `trials`.

    Merit is what TPE takes it for: complete trials within all limits by value or non-dominated
    rank, then pruned ones by how far they came and their score there.
    """
    numbers = sorted(trials)
    first = numbers[-(history - history // _BEST_SHARE)] if len(numbers) > history else 0
    signs = [1 if one is StudyDirection.MINIMIZE else -1 for one in directions]
    complete: dict[int, list[float]] = {}
    pruned: list[tuple[int, float, int]] = []
    for number, trial in trials.items():
        if any(excess > 0 for excess in trial.constraints.values()):
            continue
        if trial.state == TrialState.COMPLETE:
            complete[number] = [s * v for s, v in zip(signs, trial.values, strict=True)]
        elif trial.state == TrialState.PRUNED:
            step = max(trial.intermediate_values, default=0)
            score = signs[0] * trial.intermediate_values.get(step, 0.0)
            pruned.append((-step, score, number))
    best = [*ordered(complete), *(number for _, _, number in sorted(pruned))]
    return set(best[: history // _BEST_SHARE]), first
