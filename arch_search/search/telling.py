"""What the sampler and the published study are told of a sweep's trials."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from arch_search.search.outcome import excess, values_of
from arch_search.search.proposals import Proposals
from arch_search.search.study import Published, Statement
from arch_search.search.trials import Ledger, Trial
from arch_search.sweep_spec import SweepSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Telling:
    """Nobody is told a value of a short budget as if it were of the whole one."""

    sweep: SweepSpec
    ledger: Ledger
    proposals: Proposals
    published: Published

    def score(self, trial: Trial, rung: int) -> tuple[float, ...]:
        """Let the sampler know what a trial scored at a rung; returns the objectives."""
        values = values_of(self.sweep, trial, rung)
        self.proposals.score(trial.number, trial.tokens(self.sweep, rung), list(values))
        return values

    def end(self, trial: Trial) -> None:
        """Let the sampler know how a trial ended."""
        values = self._final_values(trial)
        self.proposals.tell(trial.number, trial.state, values, self._excess(trial))

    def publish(self, *trials: Trial) -> None:
        """Bring the study up to what these trials are, or all of them."""
        changed = list(trials) if trials and not self.published.behind else self.ledger.trials
        self.published.say(
            [
                Statement(
                    trial=replace(trial, outcomes=dict(trial.outcomes)),
                    distributions=self.proposals.distributions(trial.number),
                    values=self._final_values(trial),
                    excess=self._excess(trial),
                )
                for trial in changed
            ]
        )

    def close(self) -> None:
        self.publish()
        self.published.close()

    def _final_values(self, trial: Trial) -> list[float] | None:
        """Of the whole budget alone."""
        if trial.state != "COMPLETE":
            return None
        return list(values_of(self.sweep, trial, len(self.sweep.rungs) - 1))

    def _excess(self, trial: Trial) -> Mapping[str, float]:
        return excess(self.sweep, trial) if trial.state == "COMPLETE" else {}
