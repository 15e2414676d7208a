"""Finite groups by name, as tables: S3, A5, Z60, A4xZ5 …"""

import itertools
import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

MOST = 720  # elements: S6; a table of 5,040² would fill 200 MB


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Group:
    """A group; element 0 is the identity.

    table: (n, n) int64; `table[a, b]` is a·b, which for permutations does a first, then b.
    moved: (n,) int64, how many points a permutation moves; zeros for other groups.
    """

    table: np.ndarray
    moved: np.ndarray

    @property
    def order(self) -> int:
        return len(self.table)


@lru_cache(maxsize=32)
def group(name: str) -> Group:
    """The group of a name: S#, A# (permutations), Z# (integers by addition), joined by 'x'.

    Raises:
        ValueError: no such name, or a group of more than 720 elements.
    """
    parts = [_simple(part, name) for part in name.split("x")]
    found = parts[0]
    for other in parts[1:]:
        _require_size(found.order * other.order, name)
        found = _product(found, other)
    return found


def _simple(part: str, name: str) -> Group:
    match = re.fullmatch(r"([SAZ])([1-9]\d*)", part)
    if match is None:
        raise ValueError(
            f"unknown group {name!r}; expected S3, A5, Z60 or products of such, as in A4xZ5"
        )
    kind, number = match[1], int(match[2])
    if kind == "Z":
        _require_size(number, name)
        i = np.arange(number)
        return Group(table=(i[:, None] + i) % number, moved=np.zeros(number, np.int64))
    if number > 6:
        raise ValueError(f"group {name!r} is too large; {kind}6 is the largest of its kind here")
    elements = np.array(list(itertools.permutations(range(number))))
    if kind == "A":
        elements = elements[[_is_even(element) for element in elements]]
    places = {tuple(element): i for i, element in enumerate(elements)}
    table = [[places[tuple(b[a])] for b in elements] for a in elements]
    return Group(table=np.array(table), moved=(elements != np.arange(number)).sum(axis=1))


def _is_even(permutation: np.ndarray) -> bool:
    return sum(a > b for a, b in itertools.combinations(permutation, 2)) % 2 == 0


def _product(one: Group, other: Group) -> Group:
    n = other.order
    a, b = np.divmod(np.arange(one.order * n), n)
    table = one.table[a[:, None], a] * n + other.table[b[:, None], b]
    return Group(table=table, moved=np.zeros(len(table), np.int64))


def _require_size(order: int, name: str) -> None:
    if order > MOST:
        raise ValueError(f"group {name!r} has {order} elements; at most {MOST} are possible here")
