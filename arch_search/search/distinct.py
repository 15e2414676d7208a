"""Points of a space that no trial has: N distinct layouts, or the space is exhausted."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import optuna

from arch_search.plan_spec import ArmSpec
from arch_search.search.candidates import Candidates
from arch_search.search.proposals import Proposals
from arch_search.search.space import ENUMERABLE, Draw, Endless, Rejected, Space
from arch_search.search.trials import Trial

DRAWS = 15  # by the sampler for one trial, before others are tried
RANDOM_DRAWS = 240  # by chance after that, before the space is listed

Point = frozenset[tuple[str, Any]]

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A point to try: the sampler's trial, the arm that it stands for, and who proposed it."""

    asked: optuna.Trial
    arm: ArmSpec
    origin: str


@dataclass(kw_only=True)
class DistinctPoints:
    """Asks the sampler until it names a layout that is new, then chance, then the list of all."""

    space: Space
    candidates: Candidates
    proposals: Proposals
    _seen: dict[str, int] = field(default_factory=dict)  # trial by its layout's content
    _useless: dict[Point, str] = field(default_factory=dict)  # points not to be tried, and why
    _listed: list[dict[str, Any]] | None = None

    @property
    def exhausted(self) -> bool:
        return self._listed == []

    def knows(self, trial: Trial) -> bool:
        """Whether its layout is a trial's already."""
        return trial.content in self._seen

    def remember(self, trial: Trial) -> None:
        """That a layout, and the point that it was drawn at, are no other trial's."""
        self._seen[trial.content] = trial.number
        self._useless[_point(trial.params)] = f"the layout of trial {trial.number}"

    def next(self, number: int, enqueued: Mapping[str, Any]) -> Found | None:
        """A new layout for trial `number`; None once there is none.

        Args:
            enqueued: parameters that are to be tried first, if they are of use.
        """
        if enqueued:
            try:
                return self._try(number, 0, enqueued, "enqueue", at_random=False)
            except Rejected as error:
                log.warning("enqueued %s is left out: %s", dict(enqueued), error)
        for draw in range(1 if enqueued else 0, DRAWS + RANDOM_DRAWS):
            by_chance = draw >= DRAWS
            origin = "random" if by_chance else "sampler"
            try:
                return self._try(number, draw, {}, origin, at_random=by_chance)
            except Rejected:
                continue
        for params in self._left():
            try:
                return self._try(number, DRAWS + RANDOM_DRAWS, params, "listed", at_random=True)
            except Rejected:
                continue
        self._listed = []
        return None

    def _try(
        self, number: int, draw: int, fixed: Mapping[str, Any], origin: str, *, at_random: bool
    ) -> Found:
        """Raises Rejected for a point that is unfit, or a trial already."""
        asked = self.proposals.ask(number, draw, fixed, at_random=at_random)
        try:
            return Found(asked=asked, arm=self._resolve(asked), origin=origin)
        except Rejected as error:
            self._useless[_point(asked.params)] = str(error)
            self.proposals.drop(asked)
            raise

    def _resolve(self, asked: optuna.Trial) -> ArmSpec:
        draw = self.space.draw(asked)
        if (known := self._useless.get(_point(asked.params))) is not None:
            raise Rejected(known)
        arm = self.candidates.resolve(draw)
        if arm.factors["content"] in self._seen:
            raise Rejected(f"the layout of trial {self._seen[arm.factors['content']]}")
        return arm

    def _left(self) -> list[dict[str, Any]]:
        """All points of a space that can be listed; none of one that cannot."""
        if self._listed is None:
            self._listed = []
            try:
                for number, (params, found) in enumerate(self.space.draws()):
                    if number > ENUMERABLE:
                        self._listed = []
                        break
                    if isinstance(found, Draw):
                        self._listed.append(params)
            except Endless:
                self._listed = []
        return self._listed


def _point(params: Mapping[str, Any]) -> Point:
    """Parameters as a key: a sampler that has learnt proposes the same ones again and again."""
    return frozenset(params.items())
