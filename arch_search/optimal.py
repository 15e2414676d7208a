"""D-optimal subsets: which of all combinations to run when they are too many (Fedorov 1972).

Maximises det(XᵀX) of the additive model with the interactions that are asked about, by exchanging
one chosen cell for another while that helps, from several random starts that are always the same.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from arch_search.errors import UsageError
from arch_search.factors import Array, model_matrix, rank, shared_factors

STARTS = 10
ROUNDS = 50


def choose_cells(
    cells: Sequence[dict[str, Any]], count: int, interactions: Sequence[tuple[str, str]]
) -> list[dict[str, Any]]:
    """The `count` cells that tell most about the factors' effects, in their first order.

    Raises:
        UsageError: fewer cells asked for than there are effects to estimate, or more than exist.
    """
    if count > len(cells):
        raise UsageError(
            f"arms.choose asks for {count} of {len(cells)} combinations; leave it out to run all"
        )
    factors = shared_factors(cells)
    asked = [pair for pair in interactions if set(pair) <= set(factors)]
    basis = _full_rank(model_matrix(cells, factors, asked))
    if count < basis.shape[1]:
        raise UsageError(
            f"arms.choose: {count} arms cannot tell {basis.shape[1]} effects apart (of "
            f"{', '.join(factors)}); choose at least {basis.shape[1]}"
        )
    rng = np.random.default_rng(0)
    found = max((_exchange(basis, count, rng) for _ in range(STARTS)), key=lambda f: f[0])
    return [cells[i] for i in sorted(found[1])]


def _full_rank(matrix: Array) -> Array:
    """An orthonormal basis of the columns, so that the determinant is not zero by coding."""
    left, _, _ = np.linalg.svd(matrix, full_matrices=False)
    return left[:, : rank(matrix)]


def _exchange(basis: Array, count: int, rng: np.random.Generator) -> tuple[float, list[int]]:
    chosen = [int(i) for i in rng.choice(len(basis), count, replace=False)]
    best = _log_det(basis[chosen])
    for _ in range(ROUNDS):
        before = best
        for place in range(count):
            for candidate in set(range(len(basis))) - set(chosen):
                trial = [*chosen[:place], candidate, *chosen[place + 1 :]]
                if (value := _log_det(basis[trial])) > best + 1e-9:
                    best, chosen = value, trial
        if best == before:
            break
    return best, chosen


def _log_det(rows: Array) -> float:
    """log det(XᵀX) with a little on the diagonal, so that singular starts can be left."""
    return float(np.linalg.slogdet(rows.T @ rows + 1e-9 * np.eye(rows.shape[1]))[1])
