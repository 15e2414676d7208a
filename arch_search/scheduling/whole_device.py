"""Calls one function in a worker that has devices to itself, and waits for it."""

import math
from dataclasses import replace
from typing import Any

from arch_search.errors import UsageError
from arch_search.run_settings import ResourceSpec
from arch_search.scheduling.session import cpus_here, join, start_local


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
    try:
        gpus = math.ceil(resources.gpus)
        if session.gpus() < gpus:
            raise UsageError(f"resources.gpus asks for {gpus}; Ray sees {session.gpus()}")
        cpus = resources.cpus if address or gpus else cpus_here()
        return session.call(
            function, *arguments, resources=replace(resources, cpus=cpus, gpus=gpus)
        )
    finally:
        session.close()
