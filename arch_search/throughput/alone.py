"""The lane as one call for a worker: measure, and keep the record under the root as it grows."""

from pathlib import Path

import torch

from arch_search.devices import device_for
from arch_search.plan_spec import ArmSpec
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
        ValueError: there is no such device here, the settings do not fit the arms, or the record
            that is there timed something else.
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
        before=read_record(root, experiment) if resume else None,
        report=lambda record: write_record(root, record),
    )
