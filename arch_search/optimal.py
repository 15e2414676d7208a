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
LONGEST = 1_000  # exchanges from one start; a few dozen are usual


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
            f"arms.choose: {count} arms cannot tell a mean and {basis.shape[1] - 1} effects apart "
            f"(of {', '.join(factors)}); choose at least {basis.shape[1]}"
        )
    rng = np.random.default_rng(0)
    found = max((_exchange(basis, count, rng) for _ in range(STARTS)), key=lambda f: f[0])
    return [cells[i] for i in sorted(found[1])]


def _full_rank(matrix: Array) -> Array:
    """An orthonormal basis of the columns, so that the determinant is not zero by coding."""
    left, _, _ = np.linalg.svd(matrix, full_matrices=False)
    return left[:, : rank(matrix)]


def _exchange(basis: Array, count: int, rng: np.random.Generator) -> tuple[float, list[int]]:
    """Swap the pair that raises the determinant most, until none does; from one random start.

    Taking row r out and row x in multiplies det M by (1 + xVx)(1 - rVr) + (xVr)^2, V = M^-1.
    """
    chosen = [int(i) for i in rng.choice(len(basis), count, replace=False)]
    for _ in range(LONGEST):
        spread = basis @ np.linalg.solve(_information(basis[chosen]), basis.T)  # xVr of all pairs
        own = np.diag(spread)
        gain = (1 + own)[:, None] * (1 - own[chosen])[None, :] + spread[:, chosen] ** 2
        gain[chosen] = 0.0  # no cell twice
        new, place = np.unravel_index(np.argmax(gain), gain.shape)
        if gain[new, place] <= 1 + 1e-9:
            break
        chosen[place] = int(new)
    return float(np.linalg.slogdet(_information(basis[chosen]))[1]), chosen


def _information(rows: Array) -> Array:
    """XᵀX with a little on the diagonal, so that singular starts can be left."""
    return rows.T @ rows + 1e-6 * np.eye(rows.shape[1])
