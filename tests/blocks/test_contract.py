"""Every registered block through the contract, pairwise over its options.

A new block is found here by its line in the registry or its entry point; one that has neither by
ARCH_SEARCH_BLOCKS=my_pkg.my_file:MyBlock.
"""

import dataclasses
import functools
import os
from typing import Any, Literal, get_args, get_origin

import pytest
import torch
from allpairspy import AllPairs

from blocks.contract import Case, check_flops, clauses
from blocks.options import option_types
from blocks.registry import block_class, registered, resolve_options

KINDS = [*sorted(registered()), *filter(None, os.environ.get("ARCH_SEARCH_BLOCKS", "").split(","))]
CLAUSES = dict(clauses())

# Numbers that are small, differ from each other, and divide where they must. Options that are a
# choice or a switch are taken in full; any other stays at its default.
LEVELS: dict[str, dict[str, list[Any]]] = {
    "attention": {
        "heads": [4], "key_heads": [4, 2], "head_dim": [None, 6], "window": [0, 5],
        "rope_base": [1e2],
    },
    "gated_deltanet": {
        "key_heads": [1, 2], "value_heads": [2, 4], "key_dim": [3], "value_dim": [5],
        "convolution": [0, 4],
    },
    "gated_deltaproduct": {
        "key_heads": [1, 2], "value_heads": [2], "key_dim": [3], "value_dim": [5],
        "convolution": [0, 4], "householders": [1, 2, 3],
    },
    "gru": {"head_dim": [3], "heads": [4], "convolution": [0, 4], "gate_bias": [None, [1, 3]]},
    "lstm": {"head_dim": [3], "heads": [4], "convolution": [0, 4], "gate_bias": [None, [1, 3]]},
    "rnn": {"head_dim": [3], "heads": [4], "convolution": [0, 4]},
    "m2rnn": {
        "value_heads": [4, 1],
        "query_heads": [1, 4],
        "key_heads": [2, 4],
        "forget_heads": [None, 2],
        "gate_heads": [None, 1],
        "weight_heads": [None, 2],
        "key_dim": [5],
        "value_dim": [3],
        "convolution": [4, 0],
        "norm_groups": [2],
    },
    "mamba2": {
        "head_dim": [3], "heads": [4], "state_dim": [5], "groups": [1, 2], "convolution": [0, 4],
    },
}  # fmt: skip


def levels(kind: str) -> dict[str, list[Any]]:
    """What is tried of each option: given above, or all values of a choice or switch."""
    cls = block_class(kind).Options
    hints, found = option_types(cls), dict(LEVELS.get(kind, {}))
    for name in (option.name for option in dataclasses.fields(cls)):
        if name not in found and get_origin(hints[name]) is Literal:
            found[name] = list(get_args(hints[name]))
        elif name not in found and hints[name] is bool:
            found[name] = [True, False]
    return found


@functools.cache
def cases(kind: str) -> list[Case]:
    """The defaults, and options such that every pair of levels that fit each other occurs."""
    tried = levels(kind)

    def fits(values: list[Any]) -> bool:
        try:
            resolve_options(kind, dict(zip(tried, values, strict=False)), width=12)
        except ValueError:
            return False
        return True

    rows = AllPairs(list(tried.values()), filter_func=fits) if len(tried) > 1 else []
    found = [Case(kind=kind, options=dict(zip(tried, row, strict=True))) for row in rows]
    return [Case(kind=kind, width=16), *found]


@pytest.mark.parametrize("kind", KINDS)
def test_every_level_of_every_option_is_tried(kind):
    for name, values in levels(kind).items():
        tried = [case.options[name] for case in cases(kind) if name in case.options]
        assert all(value in tried for value in values), f"{name}: of {values} only {tried}"


ALL = [(kind, case) for kind in KINDS for case in cases(kind)]


@pytest.mark.parametrize("kind, case", ALL, ids=[f"{k}-{i}" for i, (k, _) in enumerate(ALL)])
def test_block_holds_to_the_contract(kind, case):
    torch.manual_seed(0)
    broken = []
    for name, check in CLAUSES.items():
        try:
            check(case)
        except AssertionError as error:
            broken.append(f"{name}: {error}")
    assert not broken, f"{kind} with {case}:\n" + "\n".join(broken)


@pytest.mark.parametrize("kind", KINDS)
def test_flops_are_counted_closely_at_a_real_width(kind):
    """At width 256 products are most of what runs, so that the bounds on the count are near."""
    mixer = Case(kind=kind, width=256).filled(torch.float32)
    check_flops(mixer, torch.randn(1, 128, 256))
