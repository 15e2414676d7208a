"""Which source a run uses, besides what trains every run."""

from collections.abc import Iterable, Mapping
from typing import Any

from arch_search.code_hash import code_hash
from arch_search.synthetic.registry import generator_module
from blocks.registry import block_class


def run_code(kinds: Iterable[str], task: Mapping[str, Any] | None) -> str:
    """The code hash of a run with these kinds of blocks that trains on `task`, or on a corpus."""
    modules = {block_class(kind).__module__ for kind in kinds}
    return code_hash(modules | {generator_module(name) for name in task or ()})
