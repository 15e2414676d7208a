"""After a search: members of its front, trained anew from seeds that chose nothing."""

from collections.abc import Callable
from dataclasses import dataclass

from arch_search.plan_spec import PlannedRun
from arch_search.search.outcome import front, members
from arch_search.search.trials import FIRST_FRESH_SEED, Ledger, Outcome, Trial
from arch_search.storage import Root
from arch_search.sweep_spec import SweepSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class FreshRun:
    """A run of the second look, and the trial that it belongs to."""

    trial: Trial
    seed: int
    run: PlannedRun


@dataclass(frozen=True, kw_only=True, slots=True)
class SecondLook:
    """Chooses whom to look at again, and records what came out."""

    root: Root
    sweep: SweepSpec
    ledger: Ledger

    def due(
        self, is_over: Callable[[PlannedRun], bool], outcome: Callable[[PlannedRun], Outcome]
    ) -> list[PlannedRun]:
        """The runs that are left; the sweep is closed where there is none.

        Args:
            is_over: whether a run has ended for good.   outcome: how it did.
        """
        runs = self._runs()
        for one in runs:
            known = one.trial.fresh.get(one.seed)
            if (known is None or not (known.metrics or known.failed)) and is_over(one.run):
                found = outcome(one.run)
                self._write(one.trial, one.seed, found)
        left = [one.run for one in runs if not is_over(one.run)]
        if not left and self.ledger.closed_for < self.sweep.trials:
            self.ledger.write("closed", trials=self.sweep.trials)
        return left

    def _runs(self) -> list[FreshRun]:
        """The runs with fresh seeds of some members of the front, ended ones included."""
        chosen = members(self.sweep, front(self.sweep, self.ledger.trials))
        seeds = range(FIRST_FRESH_SEED, FIRST_FRESH_SEED + self.sweep.again.seeds)
        found = []
        for trial in chosen:
            for seed in seeds:
                run = trial.fresh_run(self.sweep, seed)
                if seed not in trial.fresh:
                    self.root.run(run.hash).freeze(run.spec)
                    self._write(trial, seed, Outcome())
                found.append(FreshRun(trial=trial, seed=seed, run=run))
        return found

    def _write(self, trial: Trial, seed: int, found: Outcome) -> None:
        self.ledger.write(
            "fresh", number=trial.number, seed=seed, metrics=found.metrics, failed=found.failed
        )
