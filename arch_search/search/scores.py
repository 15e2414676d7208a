"""What a run of a sweep scored, read from what it left under the storage root."""

import math
from collections.abc import Sequence

from arch_search.run_settings import EvaluationSpec
from arch_search.search.trials import Outcome
from arch_search.storage import RunFolder
from arch_search.sweep_spec import SweepSpec


def read_outcome(
    folder: RunFolder, sweep: SweepSpec, evaluations: Sequence[EvaluationSpec]
) -> Outcome:
    """The objectives' and limits' metrics of a run that has ended, or why there are none."""
    wanted = [*sweep.objectives, *sweep.limits]
    wanted = [name for name in dict.fromkeys(wanted) if not name.startswith("count/")]
    result = folder.result()
    if result is None or not folder.is_complete(evaluations):
        return Outcome(failed=_why(folder))
    metrics = dict(result["metrics"])
    for evaluation in evaluations:
        metrics |= (folder.evaluation(evaluation) or {})["metrics"]
    missing = [n for n in wanted if not math.isfinite(metrics.get(n, math.nan))]
    if missing:
        return Outcome(failed=f"{missing[0]} is {metrics.get(missing[0], 'missing')}")
    return Outcome(metrics={name: float(metrics[name]) for name in wanted})


def _why(folder: RunFolder) -> str:
    """Why a run that has ended has no result."""
    attempts = folder.attempts()
    end = (attempts[-1].end() if attempts else None) or {}
    return f"{end.get('state', 'LOST')}: {end.get('reason', 'no attempt was made')}"
