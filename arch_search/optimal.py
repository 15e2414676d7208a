"""D-optimal subsets: which of all combinations to run when they are too many (Fedorov 1972).

Maximises det(XᵀX) of the additive model with the interactions that are asked about, by exchanging
one chosen cell for another while that helps, from several random starts that are always the same.
Where contrasts are asked `within` some levels, the cells at these have a model of their own: then
it is the product of all models' determinants.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from arch_search.errors import UsageError
from arch_search.factors import Array, is_within, model_matrix, rank, shared_factors

STARTS = 10
LONGEST = 1_000  # exchanges from one start; a few dozen are usual


def choose_cells(
    cells: Sequence[dict[str, Any]],
    count: int,
    interactions: Sequence[tuple[str, str]],
    subsets: Sequence[Mapping[str, Any]] = (),
) -> list[dict[str, Any]]:
    """The `count` cells that tell most about the factors' effects, in their first order.

    Args:
        subsets: the `within` of each contrast, inside which the effects must be told as well.
    Raises:
        UsageError: fewer cells asked for than there are effects to estimate, or more than exist.
    """
    if count > len(cells):
        raise UsageError(
            f"arms.choose asks for {count} of {len(cells)} combinations; leave it out to run all"
        )
    everywhere: Mapping[str, Any] = {}
    bases = [_basis(cells, interactions, within) for within in (everywhere, *subsets)]
    if count < bases[0].shape[1]:
        raise UsageError(
            f"arms.choose: {count} arms cannot tell a mean and {bases[0].shape[1] - 1} effects "
            f"apart (of {', '.join(shared_factors(cells))}); choose at least {bases[0].shape[1]}"
        )
    rng = np.random.default_rng(0)
    chosen = max((_exchange(bases, count, rng) for _ in range(STARTS)), key=lambda f: f[0])[1]
    for within, basis in zip((everywhere, *subsets), bases, strict=True):
        if rank(basis[chosen]) < basis.shape[1]:
            raise UsageError(
                f"arms.choose: {count} arms cannot tell all effects within {dict(within)} as well, "
                "which a contrast asks about; choose more"
            )
    return [cells[i] for i in sorted(chosen)]


def _basis(
    cells: Sequence[dict[str, Any]],
    interactions: Sequence[tuple[str, str]],
    within: Mapping[str, Any],
) -> Array:
    """The model of the cells at these levels, (cells, effects); the rows of the others are zero."""
    inside = np.array([is_within(cell, within) for cell in cells])
    some = [cell for cell, is_inside in zip(cells, inside, strict=True) if is_inside]
    factors = shared_factors(some)
    if not factors:
        return np.zeros((len(cells), 0))
    asked = [pair for pair in interactions if set(pair) <= set(factors)]
    model = _full_rank(model_matrix(some, factors, asked))
    basis = np.zeros((len(cells), model.shape[1]))
    basis[inside] = model
    return basis


def _full_rank(matrix: Array) -> Array:
    """An orthonormal basis of the columns, so that the determinant is not zero by coding."""
    left, _, _ = np.linalg.svd(matrix, full_matrices=False)
    return left[:, : rank(matrix)]


def _exchange(
    bases: Sequence[Array], count: int, rng: np.random.Generator
) -> tuple[float, list[int]]:
    """Swap the pair that raises the determinants most, until none does; from one random start."""
    chosen = [int(i) for i in rng.choice(len(bases[0]), count, replace=False)]
    for _ in range(LONGEST):
        gain = np.prod([_gain(basis, chosen) for basis in bases], axis=0)
        gain[chosen] = 0.0  # no cell twice
        new, place = np.unravel_index(np.argmax(gain), gain.shape)
        if gain[new, place] <= 1 + 1e-9:
            break
        chosen[place] = int(new)
    return sum(float(np.linalg.slogdet(_information(b[chosen]))[1]) for b in bases), chosen


def _gain(basis: Array, chosen: Sequence[int]) -> Array:
    """What det M is multiplied by if row x comes in for the chosen row r, (cells, chosen).

    (1 + xVx)(1 - rVr) + (xVr)^2 with V = M^-1.
    """
    spread = basis @ np.linalg.solve(_information(basis[chosen]), basis.T)  # xVr of all pairs
    own = np.diag(spread)
    return (1 + own)[:, None] * (1 - own[chosen])[None, :] + spread[:, chosen] ** 2


def _information(rows: Array) -> Array:
    """XᵀX with a little on the diagonal, so that singular starts can be left."""
    return rows.T @ rows + 1e-6 * np.eye(rows.shape[1])
