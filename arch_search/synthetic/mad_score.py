"""MAD's score of an architecture (arXiv 2403.17844), from accuracies that were measured.

Of a task: the mean, over its baseline setting and each setting changed, of the best accuracy in a
sweep of learning rates and weight decays. Of the architecture: the mean over tasks. Compare at
equal states and parameters, as its authors insist; with few tasks it is a first sieve only.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean


def mad_scores(accuracies: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """Each task's score, and under 'mad' the mean of them.

    Args:
        accuracies: task -> setting -> `balanced_accuracy` of each run of its sweep.
    Raises:
        ValueError: no task, or one without a setting or a run; says which.
    """
    if not accuracies:
        raise ValueError("no task was given; expected task -> setting -> accuracies")
    scores = {}
    for task, settings in accuracies.items():
        empty = [name for name, runs in settings.items() if not runs]
        if empty or not settings:
            raise ValueError(f"{task} has no accuracy{f' for {empty[0]}' if empty else ''}")
        scores[task] = fmean(max(runs) for runs in settings.values())
    return {**scores, "mad": fmean(scores.values())}
