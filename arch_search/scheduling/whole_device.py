"""Calls one function in a worker that has devices to itself, and waits for it."""

import logging
import math
import sys
from typing import Any

from arch_search.errors import UsageError
from arch_search.scheduling.session import cpus_here, join, start_local
from arch_search.scheduling.task import load
from arch_search.spec import ResourceSpec

log = logging.getLogger(__name__)


def call_alone(
    function: str, *arguments: Any, resources: ResourceSpec, address: str | None = None
) -> Any:
    """Call `module:function` as a Ray task with whole GPUs; without GPUs, with all CPUs.

    A share of a GPU becomes a whole one, so that Ray puts nothing else there meanwhile.

    Args:
        address: a running cluster; None starts one on this machine and ends it afterwards.
    Raises:
        UsageError: the cluster cannot be joined, or has no such device.
        Exception: what the function raised.
    """
    session = start_local() if address is None else join(address)
    import ray
    from ray.exceptions import RayTaskError

    try:
        gpus = math.ceil(resources.gpus)
        cpus = resources.cpus if address or gpus else cpus_here()
        if ray.cluster_resources().get("GPU", 0) < gpus:
            raise UsageError(f"resources.gpus asks for {gpus}; Ray sees no such device")
        remote: Any = ray.remote(_call)
        asked = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": 0}
        return ray.get(remote.options(name=function, **asked).remote(function, arguments))
    except RayTaskError as error:
        raise error.cause from None
    finally:
        session.close()


def _call(function: str, arguments: tuple[Any, ...]) -> Any:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    return load(function)(*arguments)
