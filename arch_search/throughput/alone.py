"""The lane as one call for a worker: measure, and keep the record under the root as it grows."""

from pathlib import Path

import torch

from arch_search.devices import device_for
from arch_search.plan_spec import ArmSpec
from arch_search.run_settings import ResourceSpec
from arch_search.storage import Root
from arch_search.throughput.lane import measure
from arch_search.throughput.record import Record, write_record
from arch_search.throughput.settings import ThroughputSpec

WHERE = f"{__name__}:measure_and_keep"


def measure_and_keep(
    root_path: str,
    experiment: str,
    arms: tuple[ArmSpec, ...],
    spec: ThroughputSpec,
    resources: ResourceSpec,
) -> Record:
    """Time the arms on this process's device and write the record after each cell.

    Raises:
        ValueError: there is no such device here, or the settings do not fit the arms.
    """
    root = Root(Path(root_path))
    device = device_for(resources)
    if device.type == "cpu":
        torch.set_num_threads(max(int(resources.cpus), 1))
    return measure(
        experiment,
        arms,
        spec,
        device=device,
        resources=resources,
        tuned=root.path / "tuned",
        report=lambda record: write_record(root, record),
    )
