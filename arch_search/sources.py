"""Which source a run uses, besides what trains every run."""

from collections.abc import Iterable, Mapping
from typing import Any

from arch_search.code_hash import code_hash
from arch_search.plan_spec import Plan
from arch_search.synthetic.registry import generator_module
from blocks.registry import block_class


def run_code(kinds: Iterable[str], task: Mapping[str, Any] | None) -> str:
    """The code hash of a run with these kinds of blocks that trains on `task`, or on a corpus."""
    return code_hash(_modules(kinds, task))


def modules_of(plan: Plan) -> set[str]:
    """Where all blocks and tasks of a plan stand, those that a sweep may come to use included.

    Raises:
        ValueError: one cannot be imported here.
    """
    kinds = {layer.kind for arm in plan.arms for layer in arm.model.layers}
    if plan.sweep is not None:
        from arch_search.search.candidates import Candidates  # imports optuna, for sweeps alone

        kinds |= Candidates.of_plan(plan).kinds()
    return {name for arm in plan.arms for name in _modules(kinds, arm.data.task)}


def _modules(kinds: Iterable[str], task: Mapping[str, Any] | None) -> set[str]:
    blocks = {block_class(kind).__module__ for kind in kinds}
    return blocks | {generator_module(name) for name in task or ()}
