"""Random experiments without any effect, with normal noise of variance 1 that is equal in all arms.

They give the law of |estimate| / standard error under `design.arm_variances`, which no table has.
All streams are seeded: the same design always gives the same intervals.
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from arch_search.statistics.design import Array, Design, own_variances, pooled_variance

DRAWS = 50_000  # leaves about 0.3 % of error in a critical value
_NUMBERS = 16_000_000  # held at once; designs of very many arms get fewer draws
_CHUNK = 2_000_000
_SEED = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Draws:
    """Effects, and variances as they are estimated: (draws, arms) each, and independent."""

    effects: Array
    variances: Array


def draw(design: Design, draws: int = DRAWS) -> Draws:
    """Experiments of this design; it must leave degrees of freedom."""
    arms, runs = design.of_arm.shape
    draws = min(draws, _NUMBERS // arms)
    effects, relative = [], []
    rng = np.random.default_rng(_SEED)
    step = max(_CHUNK // runs, 1)
    for start in range(0, draws, step):
        noise = rng.standard_normal((min(step, draws - start), runs)).T
        left = design.residuals @ noise
        effects.append((design.effects @ noise).T)
        relative.append((own_variances(design, left) / pooled_variance(design, left)).T)
    return Draws(
        effects=np.concatenate(effects),
        variances=_scaled(np.concatenate(relative), design.df, rng),
    )


def draw_balanced(arms: int, seeds: int, draws: int = DRAWS) -> Draws:
    """As `draw`, where every arm has every seed: its cost does not grow with the seeds.

    The residuals of such a design are an (arms, seeds) matrix of noise, centred both ways. Their
    products between arms have Wishart's law with seeds - 1 degrees of freedom, of which Bartlett's
    triangle is a root (1933).
    """
    draws = min(draws, _NUMBERS // (arms * min(arms, seeds)))
    rng = np.random.default_rng(_SEED)
    contrasts, degrees = arms - 1, seeds - 1
    columns = min(contrasts, degrees)
    root = rng.standard_normal((draws, contrasts, columns), np.float32)
    if degrees > contrasts:
        root = np.tril(root)
        at = np.arange(contrasts)
        root[:, at, at] = np.sqrt(rng.chisquare(degrees - at, (draws, contrasts)))
    basis = np.linalg.svd(np.eye(arms) - 1 / arms)[0][:, :contrasts].astype(np.float32)
    squares = ((basis @ root) ** 2).sum(axis=2)
    own = squares / (degrees * contrasts / arms)
    pooled = squares.sum(axis=1, keepdims=True) / (contrasts * degrees)
    return Draws(
        effects=rng.standard_normal((draws, arms)) / np.sqrt(seeds),
        variances=_scaled(own / pooled, contrasts * degrees, rng),
    )


def _scaled(relative: Array, df: int, rng: np.random.Generator) -> Array:
    """Variances from those relative to the pooled one, which is independent of them.

    The pooled variance takes evenly spaced quantiles of its law, in random order: with two arms,
    where nothing else varies, critical values are then those of Student's t.
    """
    share = (np.arange(len(relative)) + 0.5) / len(relative)
    pooled = rng.permutation(stats.chi2.ppf(share, df) / df)
    return np.fmax(relative, 1) * pooled[:, None]
