"""A sweep as its driver sees it: what should run now, given all that has run.

    ask -> rung 0 -> judge -> rung 1 -> … -> COMPLETE | PRUNED | FAIL;   then the front, anew.

Every step is written to the sweep's record before it has an effect, and follows from the record and
the runs alone. So a driver may be killed anywhere; with one run at a time the next one proposes and
judges as the first would have.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from optuna.trial import FixedTrial

from arch_search.plan_spec import Plan, PlannedRun
from arch_search.search.candidates import Candidates
from arch_search.search.distinct import DistinctPoints
from arch_search.search.judge import enough, goes_on
from arch_search.search.outcome import minimised
from arch_search.search.proposals import Proposals
from arch_search.search.scores import read_outcome
from arch_search.search.second_look import SecondLook
from arch_search.search.space import Space
from arch_search.search.study import Published
from arch_search.search.taken import Taker
from arch_search.search.telling import Telling
from arch_search.search.trials import Ledger, Outcome, Trial, ledger_path
from arch_search.storage import Root
from arch_search.trunk import Trunk

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Sweep:
    """Proposes trials, lets them on from rung to rung, and looks at the best again."""

    root: Root
    plan: Plan
    ledger: Ledger
    candidates: Candidates
    space: Space
    proposals: Proposals
    points: DistinctPoints
    telling: Telling
    second_look: SecondLook
    _runs: dict[int, PlannedRun] = field(default_factory=dict)  # what each running trial runs
    _scores: dict[int, dict[int, tuple[float, ...]]] = field(default_factory=dict)  # by rung
    _waiting: dict[int, Trial] = field(default_factory=dict)  # scored, and not judged yet

    @classmethod
    def open(cls, root: Root, plan: Plan) -> "Sweep":
        """Take a sweep up where its record ends. The caller holds the experiment's lock.

        Raises:
            UsageError: the storage cannot be used.
        """
        assert plan.sweep is not None
        folder = root.experiment(plan.name)
        ledger = Ledger(ledger_path(folder.path, plan.sweep_version)).open()
        candidates, proposals = Candidates.of_plan(plan), Proposals(plan.sweep)
        space = candidates.space()
        published = Published(plan.sweep, folder, plan.sweep_version, root.identity)
        made = cls(
            root=root,
            plan=plan,
            ledger=ledger,
            candidates=candidates,
            space=space,
            proposals=proposals,
            points=DistinctPoints(space=space, candidates=candidates, proposals=proposals),
            telling=Telling(
                sweep=plan.sweep, ledger=ledger, proposals=proposals, published=published
            ),
            second_look=SecondLook(root=root, sweep=plan.sweep, ledger=ledger),
        )
        made._take_up()
        made._take_in()
        return made

    @property
    def sweep(self) -> Any:
        return self.plan.sweep

    @property
    def last_rung(self) -> int:
        return len(self.sweep.rungs) - 1

    def due(self, is_over: Callable[[PlannedRun], bool], room: int) -> list[PlannedRun]:
        """The runs that should be in the air, at most `room` new layouts among them.

        Args:
            is_over: whether a run has ended for good, one way or the other.
        """
        runs = self._due(is_over, room)
        self.ledger.sync()
        return runs

    def _due(self, is_over: Callable[[PlannedRun], bool], room: int) -> list[PlannedRun]:
        while not self._is_searched:
            self._settle(is_over)
            self._judge()
            active = self._active()
            if len(active) < room and self._wants_more() and self._propose():
                continue
            if any(is_over(run) for run in active):
                continue  # known from an earlier experiment: answered from its record
            if active:
                return active
            if self._waiting:
                self._judge(at_last=True)
            else:
                self._finish()
        return self.second_look.due(is_over, self._outcome)

    @property
    def _is_searched(self) -> bool:
        return self.ledger.searched_for >= self.sweep.trials

    def close(self) -> None:
        self.telling.close()
        self.ledger.close()

    # What has ended

    def _settle(self, is_over: Callable[[PlannedRun], bool]) -> None:
        """Take in the runs that have ended."""
        for number, run in list(self._runs.items()):
            if is_over(run):
                del self._runs[number]
                self._scored(self.ledger.trials[number], self._outcome(run))

    def _scored(self, trial: Trial, found: Outcome) -> None:
        number, rung = trial.number, trial.rung
        self.ledger.write("score", number=number, rung=rung, metrics=found.metrics,
                          failed=found.failed)  # fmt: skip
        if found.failed:
            self._end(trial, "FAIL", f"rung {rung}: {found.failed}")
            return
        self._count(trial, rung)
        if rung == self.last_rung:
            self._end(trial, "COMPLETE", "")
        else:
            self._waiting[number] = trial
            self.telling.publish(trial)

    def _count(self, trial: Trial, rung: int) -> None:
        """Let the judge and the sampler know a score."""
        values = self.telling.score(trial, rung)
        self._scores.setdefault(rung, {})[trial.number] = minimised(self.sweep, values)

    def _outcome(self, run: PlannedRun) -> Outcome:
        return read_outcome(self.root.run(run.hash), self.sweep, self.plan.evaluations)

    def _end(self, trial: Trial, state: str, reason: str) -> None:
        """Say how a trial ended, everywhere, and let go of what it kept for going on."""
        self._waiting.pop(trial.number, None)
        self.ledger.write("ended", number=trial.number, state=state, reason=reason)
        self.telling.end(trial)
        self.telling.publish(trial)
        if self.last_rung > 0:
            Trunk(self.root.path, trial.run(self.sweep, 0).spec).drop()

    # Who goes on

    def _judge(self, *, at_last: bool = False) -> None:
        """Judge those that wait at a rung, once enough stand there, or if no more can come."""
        for trial in [self._waiting[number] for number in sorted(self._waiting)]:
            scores = self._scores[trial.rung]
            if self.sweep.is_immune(trial.number):
                self._promote(trial)
            elif len(scores) >= enough(self.sweep.pruner) or (at_last and not self._wants_more()):
                if goes_on(trial.number, scores, self.sweep.pruner):
                    self._promote(trial)
                else:
                    share = self.sweep.rungs[trial.rung]
                    reason = f"rung {trial.rung} ({share:.0%} of the tokens)"
                    self._end(trial, "PRUNED", reason)

    def _promote(self, trial: Trial) -> None:
        self._waiting.pop(trial.number)
        self.ledger.write("promoted", number=trial.number, rung=trial.rung + 1)
        self._start(trial)

    def _start(self, trial: Trial) -> None:
        """Have a trial's next run ready; its folder is frozen before anyone is asked to run it."""
        run = trial.run(self.sweep, trial.rung)
        self.root.run(run.hash).freeze(run.spec, durable=False)  # the record would make it again
        self._runs[trial.number] = run

    def _active(self) -> list[PlannedRun]:
        return [self._runs[number] for number in sorted(self._runs)]

    # What comes next

    def _wants_more(self) -> bool:
        return self.ledger.tried < self.sweep.trials and not self.points.exhausted

    def _propose(self) -> bool:
        """Add a trial with a layout that no other has; False if there is none."""
        number = len(self.ledger.trials)
        found = self.points.next(number, self._fixed())
        if found is None:
            log.info("the space is exhausted after %d layouts", self.ledger.tried)
            return False
        self.proposals.keep(number, found.asked)
        trial = Trial(
            number=number,
            params=dict(found.asked.params),
            arm=found.arm,
            code=self.candidates.code(found.arm.model),
            immune=self.sweep.is_immune(number),
            origin=found.origin,
            notes=self.proposals.notes(number),
        )
        self.ledger.add(trial)
        self.points.remember(trial)
        self._start(trial)
        self.telling.publish(trial)
        return True

    def _fixed(self) -> dict[str, Any]:
        tried = self.ledger.tried
        if tried >= len(self.sweep.enqueue):
            return {}
        return self.space.fixed(self.sweep.enqueue[tried], f"sweep.enqueue[{tried}]")

    # After the search

    def _finish(self) -> None:
        """The search is over: say why, and choose whom to look at again."""
        count, asked = self.ledger.tried, self.sweep.trials
        reason = f"{count} distinct layouts"
        if count < asked:
            reason = f"the space is exhausted: {count} distinct layouts within its limits"
        self.ledger.write("over", reason=reason, trials=asked)
        log.info("search over: %s", reason)

    # Taking up

    def _take_up(self) -> None:
        """Bring the samplers and the storage to what the record says, and go on with the rest."""
        for trial in self.ledger.trials:
            self._restore(trial)
            if trial.state != "RUNNING":
                self.telling.end(trial)
            elif trial.rung in trial.outcomes and trial.outcomes[trial.rung].failed:
                self._end(trial, "FAIL", f"rung {trial.rung}: {trial.outcomes[trial.rung].failed}")
            elif trial.rung in trial.outcomes and trial.rung == self.last_rung:
                self._end(trial, "COMPLETE", "")
            elif trial.rung in trial.outcomes:
                self._waiting[trial.number] = trial
            else:
                self._start(trial)
        self.telling.publish()

    def _restore(self, trial: Trial) -> None:
        """Let samplers and judge know a trial that the record has."""
        fixed = FixedTrial(trial.params)
        self.space.draw(fixed)
        self.proposals.restore(trial, fixed.distributions)
        self.points.remember(trial)
        for rung, found in trial.outcomes.items():
            if not found.failed:
                self._count(trial, rung)

    def _take_in(self) -> None:
        """Begin with the results of the experiments that the file names, each read once."""
        taker = Taker(
            root=self.root,
            sweep=self.sweep,
            own=(self.plan.name, self.plan.sweep_version),
            candidates=self.candidates,
            space=self.space,
            evaluations=self.plan.evaluations,
        )
        for name in self.sweep.take:
            if name in self.ledger.took:
                continue
            new = [trial for trial in taker.take(name) if not self.points.knows(trial)]
            for number, trial in enumerate(new, len(self.ledger.trials)):
                trial.number = number
            self.ledger.add_taken(name, new)
            for trial in self.ledger.trials[len(self.ledger.trials) - len(new) :]:
                self._restore(trial)
                self.telling.end(trial)
                self.telling.publish(trial)
            log.info("%d results taken from %s", len(new), name)
