"""Which share of a GPU each run of a packed experiment gets."""

import logging
from dataclasses import replace

from arch_search.plan_spec import Plan
from arch_search.run_settings import ResourceSpec
from arch_search.scheduling.session import Session
from arch_search.storage import Root

log = logging.getLogger(__name__)


def packed_resources(session: Session, root: Root, plan: Plan) -> ResourceSpec:
    """The plan's resources, with a share of a GPU in place of a whole one if it asks for that.

    Measures what the arms need on one of the cluster's GPUs. Processors bound the number as well:
    each run needs its own to keep the GPU at work.
    """
    resources = plan.resources
    if not resources.packed or resources.gpus != 1:
        return resources
    from arch_search.throughput import WHERE_MEMORY

    fit = session.call(WHERE_MEMORY, str(root.path), plan.arms, resources, resources=resources)
    by_processors = session.capacity(replace(resources, gpus=0)) // max(session.gpus(), 1)
    count = max(1, min(fit, by_processors))
    log.info(
        "packed: %d runs on each GPU (its memory holds %d, the processors %d)",
        count,
        fit,
        by_processors,
    )
    return replace(resources, gpus=1 / count)
