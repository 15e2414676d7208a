"""How a comparison was controlled, in sentences written from the records alone."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from arch_search.budgets import NO_CURVE, TokenMultiplier, schedule_sentence
from arch_search.cautions import as_sentence
from arch_search.compare import Comparison
from arch_search.documents import FEW, REACH, DocumentDifference
from arch_search.metric_names import label
from arch_search.records import Experiment, RunRecord, curve_metric, curves
from arch_search.starts import branch_sentences
from arch_search.wording import percent

NOTABLE = 0.005  # a share; smaller differences in a count are not worth a sentence


def how_controlled(
    experiment: Experiment, comparison: Comparison, finished: Sequence[RunRecord]
) -> tuple[str, ...]:
    """How the comparison was controlled, as far as the records show it."""
    said = list(comparison.control.equal)
    starts = {(run.planned.seed, run.planned.spec.init_seed) for run in finished}
    if len(starts) == len({seed for seed, _ in starts}):
        said.append(
            "For one seed, all arms start from one init seed; a parameter's first value follows "
            "from that seed, its name and its shape alone."
        )
    resumed = sum(run.attempts > 1 for run in finished)
    said.append(
        f"{resumed} of {len(finished)} runs took more than one attempt; a later attempt goes on "
        "from the last checkpoint."
    )
    model = comparison.model
    if model is not None and model.df > 0:
        said.append(
            "Differences come from one linear model over all arms, with seeds as blocks; an arm's "
            f"noise is the larger of the pooled one ({model.df} degrees of freedom) and its own. "
            f"Intervals are simultaneous (critical value {model.critical:.2f})."
        )
    return (*said, *comparison.control.declared, _planned(experiment, finished))


def _planned(experiment: Experiment, finished: Sequence[RunRecord]) -> str:
    """When the plan was written; runs from before it were reused, for their equal hash."""
    created = datetime.fromisoformat(experiment.plan.created)
    reused = sum((run.result or {}).get("ended", 0) < created.timestamp() for run in finished)
    said = f"The plan was written on {created:%Y-%m-%d at %H:%M} UTC"
    if not reused:
        return f"{said}, before any of its runs had ended."
    return f"{said}; {reused} runs of equal content hash had ended before and were reused."


def residues(experiment: Experiment) -> list[str]:
    """Counts in which arms differ from the baseline without being a factor, with their size."""
    base, found = experiment.baseline, []
    for name, value in base.counts.items():
        shares = {
            arm.name: arm.counts[name] / value - 1
            for arm in experiment.plan.arms
            if value and name in arm.counts
        }
        arm, largest = max(shares.items(), key=lambda item: abs(item[1]), default=("", 0.0))
        if abs(largest) > NOTABLE and name not in base.factors:
            found.append(f"{name.replace('_', ' ')} ({percent(largest)} in {arm})")
    if not found:
        return []
    return [
        f"Not held equal, largest departure from the baseline: {', '.join(found)}. "
        "A difference in quality may come from that."
    ]


def notes(experiment: Experiment, comparison: Comparison) -> tuple[str, ...]:
    """What a reader should keep in mind: the planner's notes and findings, tuning, warnings."""
    plan = experiment.plan
    held = [as_sentence(one) for one in plan.findings if one.level == "residue"]
    tuned = [
        f"Learning rate of {one.level}: {one.learning_rate:g}, the best of "
        f"{', '.join(one.means)} in {one.experiment} ({one.metric}, seeds of its own)."
        for one in plan.tuned
    ]
    return (
        *plan.notes,
        *comparison.cautions,
        *comparison.limits,
        *(held or residues(experiment)),
        *tuned,
        *branch_sentences(experiment),
        *comparison.control.warnings,
    )


def reach_words(
    experiment: Experiment,
    comparison: Comparison,
    multipliers: Sequence[TokenMultiplier],
    documents: Sequence[DocumentDifference],
) -> tuple[str, ...]:
    """How far the evidence of other budgets and of documents reaches."""
    said, logged = [], curves(experiment)
    if not any(reading.unit == "FLOPs" for reading in comparison.readings):
        curve = f" Curves are of {label(curve_metric(logged))}." if len(logged) else ""
        said.append(f"Equal FLOPs is not shown: all arms took the same, or {NO_CURVE}.{curve}")
    for reading in comparison.readings:
        said.append(
            f"Equal {reading.unit}: every arm at {reading.budget:.3g} {reading.unit} of training "
            f"({reading.source}), read off {label(reading.metric)} as logged while training."
        )
    if comparison.no_seconds:
        said.append(f"Equal seconds is not shown: {comparison.no_seconds}.")
    if multipliers and not comparison.readings:  # else it stands among what was found
        said.append(schedule_sentence([arm.train.schedule for arm in experiment.plan.arms]))
    if multipliers:
        said.append(
            "Token multiplier: how many times the arm's tokens the baseline needs to come equally "
            "far (over 1 is in the arm's favour), read off the same curve; mean and 95 % interval "
            "over seeds, arm by arm."
        )
    if documents:
        few = documents[0].documents < FEW
        said.append(REACH)
        if few:
            said.append(
                f"With {documents[0].documents} documents such an interval is too narrow; read it "
                "as a description."
            )
    return tuple(said)


def recorded_environment(finished: Sequence[RunRecord]) -> tuple[tuple[str, str], ...]:
    """What the first run ran on, and all kernels; the warnings name what differs in others."""
    recorded = [(run.result or {}).get("environment", {}) for run in finished]
    rows: dict[str, Any] = dict(recorded[0])
    versions = rows.pop("versions", {})
    backends = {k: v for one in recorded for k, v in one.get("backends", {}).items()}
    reasons = {k: v for one in recorded for k, v in one.get("backend_reasons", {}).items()}
    rows = {k: v for k, v in rows.items() if k not in ("backends", "backend_reasons")}
    shown = {key.replace("_", " "): value for key, value in rows.items() if value not in ("", None)}
    shown["versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    shown["kernels"] = ", ".join(f"{kind}: {backend}" for kind, backend in backends.items())
    shown["kernels, why"] = "; ".join(f"{what}: {why}" for what, why in reasons.items())
    return tuple((key, str(value)) for key, value in shown.items() if value)
