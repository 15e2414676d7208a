"""Puts a throughput record into MLflow: an experiment `<name>-throughput`, a flat run an arm."""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arch_search.plan_spec import Plan
from arch_search.storage import Root
from arch_search.throughput.record import OK, Record
from arch_search.tracking.server import is_server, prepare, probe, reason, tracking_address

if TYPE_CHECKING:
    from mlflow import MlflowClient

NUMBERS = (
    "tokens_per_second", "ratio", "peak_memory_gib", "mfu", "parameters",
    "forward_flops_per_token", "milliseconds",
)  # fmt: skip


def log_throughput(root: Root, plan: Plan, record: Record, paths: Sequence[Path]) -> str:
    """One run for each arm, with a metric's step being the context's length; files with the first.

    A record that is logged already, by the time that it was measured at, is not logged again.

    Returns:
        why MLflow has not got it, in one line; empty if it has. The files stand in the root.
    """
    uri = tracking_address(root, plan.tracking_uri)
    try:
        probe(uri)
        prepare(uri)
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=uri)
        experiment = _experiment(client, root, f"{plan.name}-throughput", uri)
        logged = f"tags.measured = '{record['measured']}'"
        if client.search_runs([experiment], logged, max_results=1):
            return ""
        for name in record["arms"]:
            run = _log_arm(client, experiment, root, record, name)
            for path in paths if name == record["baseline"] else ():
                client.log_artifact(run, str(path), "throughput")
    except Exception as error:  # whatever MLflow, a database or the network raises
        return reason(error)
    return ""


def _experiment(client: "MlflowClient", root: Root, name: str, uri: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is not None:
        return found.experiment_id
    folder = root.path / "mlartifacts" / name  # a database has no place for files
    where = None if is_server(uri) else folder.as_uri()
    return client.create_experiment(name, artifact_location=where)


def _log_arm(client: "MlflowClient", experiment: str, root: Root, record: Record, name: str) -> str:
    from mlflow.entities import Metric, Param, RunTag

    arm, now = record["arms"][name], int(time.time() * 1000)
    tags = {
        "arch_search.root": root.identity,
        "arch_search.kind": "throughput",
        "measured": record["measured"],
        "study": record["experiment"],
        "device": record["device"],
        "rankable": str(record["rankable"]).lower(),
        "state": arm["state"],
        **{f"backends/{kernel}": used for kernel, used in arm["backends"].items()},
        **{f"versions/{k}": v for k, v in record["environment"]["versions"].items()},
    }
    made = client.create_run(experiment, tags=tags, run_name=f"{record['experiment']}/{name}")
    run = made.info.run_id
    params = {"arm": name, "layout": arm["layout"], "batch": arm["batch"], "length": arm["length"]}
    client.log_batch(
        run,
        params=[Param(k, str(v)) for k, v in params.items()],
        metrics=[Metric(key, value, now, step) for key, value, step in _metrics(record, name)],
        tags=[RunTag("precision", record["precision"])],
        synchronous=True,
    )
    client.set_terminated(run, "FINISHED" if arm["state"] == OK else "FAILED")
    return run


def _metrics(record: Record, name: str) -> Iterable[tuple[str, float, int]]:
    """(name, value, step): the headline at its own length, each sweep over what it varies."""
    arm: dict[str, Any] = record["arms"][name]
    for number in NUMBERS:
        if arm.get(number) is not None:
            yield f"throughput/{number}", float(arm[number]), arm["length"]
    for part, flops in arm["forward_flops_by_part"].items():
        yield f"flops/{part}", float(flops), arm["length"]
    for cell in record["cells"]:
        if cell["arm"] != name or cell["state"] != OK:
            continue
        speed = float(cell["tokens_per_second"])
        for sweep in cell["sweeps"]:
            yield (
                f"{sweep}/tokens_per_second",
                speed,
                cell["length" if sweep == "context" else "batch"],
            )
        if cell["kind"] != "train":
            at = f"{cell['kind']}/batch_{cell['batch']}"
            yield f"{at}/tokens_per_second", speed, cell["length"]
            yield f"{at}/cache_bytes", float(cell["cache_bytes"]), cell["length"]
