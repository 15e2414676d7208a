"""Evaluations asked for after a run had ended, added to what MLflow shows of it."""

import time
from collections.abc import Collection

from mlflow import MlflowClient
from mlflow.entities import Metric, RunTag

from arch_search.records import RunRecord
from arch_search.spec import content_hash
from arch_search.storage import Root
from arch_search.tracking.describe import metric_name
from arch_search.tracking.server import probe, reason, tracking_address

TAG = "later_evaluations"  # the hash of what MLflow has of them


def push_later(client: MlflowClient, run_id: str, run: RunRecord, known: str) -> str:
    """Bring a run's later evaluations to MLflow; twice changes nothing.

    A number stands at the run's last step, or one behind the last that MLflow has of that name: an
    evaluation that was done again has two.

    Args:
        known: what the run's tag said of them.
    Returns:
        what it says now.
    """
    content = content_hash([[one.spec.hash, one.metrics] for one in run.later])
    if content == known:
        return known
    metrics, now = [], int(time.time() * 1000)
    for name, value in ((k, v) for one in run.later for k, v in one.metrics.items()):
        before = client.get_metric_history(run_id, metric_name(name))
        if not before or before[-1].value != value:
            step = max((m.step + 1 for m in before), default=run.planned.spec.steps)
            metrics.append(Metric(metric_name(name), float(value), now, step))
    for one in run.later:
        file = run.folder.path / "evaluations" / f"{one.spec.hash}.json"
        client.log_artifact(run_id, str(file), f"evaluations/{one.spec.task}")
    tags = [RunTag(TAG, content)]  # with the last batch: until then they are sent again
    client.log_batch(run_id, metrics=metrics, tags=tags, synchronous=True)
    return content


def push_evaluations(root: Root, hashes: Collection[str]) -> dict[str, str]:
    """Bring the later evaluations of these runs to each experiment in MLflow that shows them.

    An experiment that was never there is left out: whatever brings it there brings all of it.

    Returns:
        by experiment, why MLflow has not got them, in one line; empty if it has.
    """
    found = {}
    for folder in root.experiments():
        if not folder.read("tracking.json").get("experiment_id"):
            continue
        plan = folder.plan()
        if not any(planned.hash in hashes for planned in plan.runs):
            continue
        uri = tracking_address(root, plan.tracking_uri)
        try:
            probe(uri)
            from arch_search.tracking.mirror import Mirror

            Mirror(root, plan, uri).push_later()
            found[plan.name] = ""
        except Exception as error:  # whatever MLflow, a database or the network raises
            found[plan.name] = reason(error)
    return found
