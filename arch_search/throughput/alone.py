"""The lane as one call for a worker: measure, and keep the record under the root as it grows."""

from pathlib import Path

import torch

from arch_search.devices import device_for
from arch_search.plan_spec import ArmSpec
from arch_search.preflight import check_backends
from arch_search.run_settings import ResourceSpec
from arch_search.storage import Root
from arch_search.throughput.lane import measure
from arch_search.throughput.record import Record, read_record, write_record
from arch_search.throughput.settings import ThroughputSpec

WHERE = f"{__name__}:measure_and_keep"


def measure_and_keep(
    root_path: str,
    experiment: str,
    arms: tuple[ArmSpec, ...],
    spec: ThroughputSpec,
    resources: ResourceSpec,
    resume: bool = False,
) -> Record:
    """Time the arms on this process's device and write the record after each cell.

    Args:
        resume: keep the cells of the record that is there.
    Raises:
        ValueError: there is no such device here, a backend asked for by name does not work on it,
            the settings do not fit the arms, or the record that is there is damaged or timed
            something else. No record was written.
    """
    root = Root(Path(root_path))
    device = device_for(resources)
    if device.type == "cpu":
        torch.set_num_threads(max(int(resources.cpus), 1))
    before = read_record(root, experiment, whole=True) if resume else None
    check_backends(root_path, arms, resources)
    return measure(
        experiment,
        arms,
        spec,
        device=device,
        resources=resources,
        tuned=root.path / "tuned",
        before=before,
        report=lambda record: write_record(root, record),
    )
