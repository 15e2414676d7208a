"""Put a finished report beside the runs that it is about."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from arch_search.plan_spec import Plan
from arch_search.storage import Root
from arch_search.tracking.describe import metric_name
from arch_search.tracking.server import probe, reason, tracking_address


def attach_report(
    root: Root, plan: Plan, paths: Sequence[Path], headline: Mapping[str, float]
) -> str:
    """Log files and headline numbers to the experiment's summary run in MLflow.

    Returns:
        why MLflow has not got them, in one line; empty if it has. The files stand in the root
        either way, so an outage is no reason to fail.
    """
    uri = tracking_address(root, plan.tracking_uri)
    try:
        probe(uri)
        from arch_search.tracking.mirror import Mirror

        Mirror(root, plan, uri).attach(paths, {metric_name(k): v for k, v in headline.items()})
    except Exception as error:  # whatever MLflow, a database or the network raises
        return reason(error)
    return ""
