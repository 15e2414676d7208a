"""Who goes on at a rung: successive halving and a median rule, for one objective or several.

Scores are minimised. With several objectives a trial's place is its non-dominated rank, and within
a rank the less crowded come first (Deb et al. 2002), so that a rule keeps as many as for one.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np

from arch_search.sweep_spec import PrunerSpec

Scores = Sequence[float]


def non_dominated_ranks(scores: Sequence[Scores]) -> list[int]:
    """0 for the front, 1 for the front of what is left without it, and so on."""
    if not scores:
        return []
    if len(scores[0]) <= 2:
        return _ranks_of_pairs(scores)
    points = np.asarray(scores, dtype=float)
    ranks = np.full(len(points), -1)
    left = np.arange(len(points))
    rank = 0
    while len(left):
        here = points[left]
        no_worse = (here[:, None] <= here[None]).all(-1)
        better = (here[:, None] < here[None]).any(-1)
        dominated = (no_worse & better).any(0)
        ranks[left[~dominated]] = rank
        left = left[dominated]
        rank += 1
    return ranks.tolist()


def _ranks_of_pairs(scores: Sequence[Scores]) -> list[int]:
    """The same for one or two numbers, in n log n: a front's members fall in the second number."""
    pairs = [(score[0], score[-1]) for score in scores]
    lowest: list[float] = []  # the second number of each front's last member
    ranks: dict[tuple[float, float], int] = {}
    for pair in sorted(set(pairs)):
        rank = bisect_right(lowest, pair[1])
        lowest[rank : rank + 1] = [pair[1]]
        ranks[pair] = rank
    return [ranks[pair] for pair in pairs]


def crowding_distances(scores: Sequence[Scores]) -> list[float]:
    """How far a point's neighbours are along each objective; infinite at the ends."""
    points = np.asarray(scores, dtype=float).reshape(len(scores), -1)
    distance = np.zeros(len(points))
    for column in points.T:
        order = np.argsort(column, kind="stable")
        extent = column[order[-1]] - column[order[0]]
        distance[order[[0, -1]]] = np.inf
        if extent > 0 and len(points) > 2:
            distance[order[1:-1]] += (column[order[2:]] - column[order[:-2]]) / extent
    return distance.tolist()


def ordered(scores: Mapping[int, Scores]) -> list[int]:
    """Trials from best to worst; among equals the earlier first."""
    numbers = sorted(scores)
    ranks = dict(zip(numbers, non_dominated_ranks([scores[n] for n in numbers]), strict=True))
    place: dict[int, tuple[float, ...]] = {}
    for rank in set(ranks.values()):
        members = [n for n in numbers if ranks[n] == rank]
        distances = crowding_distances([scores[n] for n in members])
        for number, distance in zip(members, distances, strict=True):
            place[number] = (rank, -distance, number)
    return sorted(numbers, key=lambda number: place[number])


def goes_on(number: int, scores: Mapping[int, Scores], pruner: PrunerSpec) -> bool:
    """Whether a trial goes on, given the scores of all that reached the rung, its own included."""
    if pruner.rule == "none":
        return True
    kept = len(scores) // (2 if pruner.rule == "median" else pruner.reduction)
    if len(own := scores[number]) == 1:
        better = sum((score[0], other) < (own[0], number) for other, score in scores.items())
        return better < max(kept, 1)
    return number in ordered(scores)[: max(kept, 1)]


def enough(pruner: PrunerSpec) -> int:
    """How many scores a rung must have before it judges any."""
    if pruner.rule == "none":
        return 1
    return pruner.startup or (pruner.reduction if pruner.rule == "asha" else 4)
