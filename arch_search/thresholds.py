"""Forget threshold and recall limit over a grid of state sizes and training lengths.

Forget threshold: the smallest training length without collapse. Recall limit: the longest context
with enough passkeys found, of the model trained at that length (arXiv 2410.07145, §5). Published
for Mamba-2, with T in thousands of tokens and N in millions of state elements: T = 5.172 N - 4.469,
and T = 4.756 (1.365^N - 1) - 0.742. Free of torch.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import statsmodels.api as sm
from scipy import optimize, stats

from arch_search.errors import UsageError
from arch_search.records import Experiment, RunRecord
from blocks.options import did_you_mean

RATIO = "collapse/ratio"
PASSKEY = "passkey"  # the label of the evaluation, where none is asked for
_PASSKEYS = re.compile(r"(.+)/strict_accuracy_(\d+)x")  # label, multiple of the training length
LEVEL = 0.95
PUBLISHED = (5.172, -4.469)  # slope and intercept of Mamba-2's forget threshold
RATES = (1e-3, 50.0)  # of the exponential form, over the largest state size: from a line to a cliff
EDGE = 1.001  # times the least squared error: a line or a cliff that comes so near fits as well


@dataclass(frozen=True, kw_only=True, slots=True)
class GridPoint:
    """One finished run: passkey accuracy by context length in tokens, those tested."""

    block: str
    state_elements: int
    training_length: int
    seed: int
    ratio: float
    passkeys: dict[int, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Threshold:
    """Of one state size and seed; None where no training length of the grid reached it.

    `tried` are the lengths that ran. recall: 0 if not even the shortest context sufficed. asked:
    whether passkeys were evaluated at all, without which nothing is known of recall.
    """

    block: str
    state_elements: int
    seed: int
    tried: tuple[int, ...]
    forget: int | None
    recall: int | None
    asked: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Coefficient:
    """An estimate with its 95 % interval; None without a degree of freedom left."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ThresholdFit:
    """T in thousands of tokens over N in millions of elements.

    linear: T = slope N + intercept.   exponential: T = scale (exp(rate N) - 1) + intercept, so the
    published base is exp(rate).
    """

    what: str  # forget or recall
    form: str
    coefficients: dict[str, Coefficient]
    r_squared: float
    points: int
    undetermined: bool = False  # exponential: a line or a step fits as well, and no interval holds

    def at(self, millions: np.ndarray) -> np.ndarray:
        """T in thousands of tokens."""
        c = {name: part.value for name, part in self.coefficients.items()}
        if self.form == "linear":
            return c["slope"] * millions + c["intercept"]
        return c["scale"] * np.expm1(c["rate"] * millions) + c["intercept"]


def read_grid(experiment: Experiment, *, passkey: str | None = None) -> tuple[GridPoint, ...]:
    """Every finished run that was looked at for collapse.

    Args:
        passkey: the label of the passkey evaluation; `PASSKEY`, where there is one, if None.
    Raises:
        UsageError: none was, or no run has a passkey evaluation of the label asked for.
    """
    if passkey is not None:
        _require_label(experiment, passkey)
    points = tuple(
        _point(run, passkey or PASSKEY)
        for run in experiment.trained
        if run.metrics.get(RATIO) is not None
    )
    if not points:
        raise UsageError(
            f"{experiment.plan.name} has no finished run with {RATIO}; evaluate collapse"
        )
    return points


def _require_label(experiment: Experiment, label: str) -> None:
    names = {name for run in experiment.trained for name in run.metrics}
    labels = sorted({m[1] for name in names if (m := _PASSKEYS.fullmatch(name))})
    if label not in labels:
        raise UsageError(
            f"no run of {experiment.plan.name} has a passkey evaluation of label {label!r}; "
            f"labels: {', '.join(labels) or 'none'}.{did_you_mean(label, labels)}"
        )


def _point(run: RunRecord, passkey: str) -> GridPoint:
    length = run.arm.data.sequence_length
    found = {
        int(m[2]) * length: accuracy
        for name, accuracy in run.metrics.items()
        if (m := _PASSKEYS.fullmatch(name)) and m[1] == passkey
    }
    kinds = dict.fromkeys(layer.kind for layer in run.arm.model.layers)
    return GridPoint(
        block="+".join(kinds),
        state_elements=round(run.arm.counts["state_elements"]),
        training_length=length,
        seed=run.planned.seed,
        ratio=run.metrics[RATIO],
        passkeys=dict(sorted(found.items())),
    )


def find_thresholds(
    points: Sequence[GridPoint], *, factor: float, accuracy: float = LEVEL
) -> tuple[Threshold, ...]:
    """Thresholds by block, state size and seed; collapse is a ratio over `factor`."""
    found = []
    for block, size, seed in sorted({(p.block, p.state_elements, p.seed) for p in points}):
        own = sorted(
            (p for p in points if (p.block, p.state_elements, p.seed) == (block, size, seed)),
            key=lambda p: p.training_length,
        )
        first = next((p for p in own if p.ratio <= factor), None)
        reached = [n for n, a in first.passkeys.items() if a >= accuracy] if first else []
        recall = max(reached, default=0) if first and first.passkeys else None
        found.append(
            Threshold(
                block=block,
                state_elements=size,
                seed=seed,
                tried=tuple(p.training_length for p in own),
                forget=first.training_length if first else None,
                recall=recall,
                asked=any(p.passkeys for p in ([first] if first else own)),
            )
        )
    return tuple(found)


def fit_thresholds(thresholds: Sequence[Threshold], what: str) -> tuple[ThresholdFit, ...]:
    """Linear and exponential fits of `forget` or `recall` over state size, one point a seed.

    A form with more coefficients than there are state sizes is left out. Sizes that reached no
    threshold, or recall not even the shortest context, are not in the fits; whoever shows them says
    so, for they bias the slope. A threshold that is the same everywhere has no slope to be sure of.
    """
    known = [
        (t.state_elements / 1e6, value / 1e3) for t in thresholds if (value := getattr(t, what))
    ]
    sizes = len({size for size, _ in known})
    millions = np.array([size for size, _ in known])
    thousands = np.array([value for _, value in known])
    fits = []
    if sizes >= 2:
        fits.append(_linear(millions, thousands, what))
    if sizes >= 3 and np.ptp(thousands) > 0:
        fits.append(_exponential(millions, thousands, what))
    return tuple(fits)


def _linear(millions: np.ndarray, thousands: np.ndarray, what: str) -> ThresholdFit:
    fit = sm.OLS(thousands, sm.add_constant(millions)).fit()
    known = fit.df_resid > 0 and np.ptp(thousands) > 0
    intervals = fit.conf_int() if known else None
    names = ("intercept", "slope")
    coefficients = {
        name: Coefficient(
            value=float(fit.params[i]),
            low=None if intervals is None else float(intervals[i][0]),
            high=None if intervals is None else float(intervals[i][1]),
        )
        for i, name in enumerate(names)
    }
    return ThresholdFit(
        what=what,
        form="linear",
        coefficients=coefficients,
        r_squared=_r_squared(thousands, fit.fittedvalues),
        points=len(thousands),
    )


def _exponential(millions: np.ndarray, thousands: np.ndarray, what: str) -> ThresholdFit:
    """Least squares on N as a share of its largest, so that any grid is as well conditioned.

    With the rate given, scale and intercept follow by linear least squares, so one number is left
    to search. Intervals come from the Jacobian at the solution.
    """
    largest = millions.max()
    share = millions / largest

    def solve(rate: float) -> tuple[np.ndarray, float]:
        basis = np.column_stack([np.expm1(rate * share) / np.expm1(rate), np.ones_like(share)])
        values = np.linalg.lstsq(basis, thousands, rcond=None)[0]
        return values, float(((basis @ values - thousands) ** 2).sum())

    rates = np.geomspace(*RATES, 60)
    near = int(np.argmin([solve(rate)[1] for rate in rates]))
    around = (rates[max(near - 1, 0)], rates[min(near + 1, len(rates) - 1)])
    found: Any = optimize.minimize_scalar(
        lambda r: solve(r)[1], bounds=around, method="bounded", options={"xatol": 1e-10}
    )
    rate = float(found.x)
    (height, intercept), error = solve(rate)
    scale = height / np.expm1(rate)
    jacobian = np.column_stack(
        [np.expm1(rate * share), scale * share * np.exp(rate * share), np.ones_like(share)]
    )
    freedom = len(thousands) - 3
    half = np.full(3, np.inf)
    undetermined = min(solve(edge)[1] for edge in RATES) <= error * EDGE
    if freedom > 0 and not undetermined:
        covariance = np.linalg.pinv(jacobian.T @ jacobian) * error / freedom
        half = stats.t.ppf(0.975, freedom) * np.sqrt(np.diag(covariance))
    named = (("scale", scale, 1.0), ("rate", rate, largest), ("intercept", intercept, 1.0))
    coefficients = {
        name: Coefficient(
            value=float(value / unit),
            low=float((value - h) / unit) if np.isfinite(h) else None,
            high=float((value + h) / unit) if np.isfinite(h) else None,
        )
        for (name, value, unit), h in zip(named, half, strict=True)
    }
    return ThresholdFit(
        what=what,
        form="exponential",
        coefficients=coefficients,
        r_squared=_r_squared(thousands, scale * np.expm1(rate * share) + intercept),
        points=len(thousands),
        undetermined=undetermined,
    )


def _r_squared(values: np.ndarray, fitted: np.ndarray) -> float:
    if np.ptp(values) == 0:  # the mean of equal values may be off by a rounding
        return float("nan")
    total = float(((values - values.mean()) ** 2).sum())
    return 1 - float(((values - fitted) ** 2).sum()) / total


def fit_sentence(fit: ThresholdFit) -> str:
    """A fit in words, with its intervals."""
    shown = {
        name: f"{c.value:.4g}"
        + ("" if c.low is None or c.high is None else f" [{c.low:.4g}, {c.high:.4g}]")
        for name, c in fit.coefficients.items()
    }
    what = "forget threshold" if fit.what == "forget" else "recall limit"
    if fit.form == "linear":
        form = f"{shown['slope']} N + {shown['intercept']}"
    else:
        form = f"{shown['scale']} (exp({shown['rate']} N) - 1) + {shown['intercept']}"
    if fit.undetermined:
        return (
            f"{what}, {fit.form}: {fit.points} points do not determine it, a line or a step "
            f"fits as well; R² {fit.r_squared:.3f}"
        )
    if fit.form == "linear" and not np.isfinite(fit.r_squared):
        return (
            f"{what}: {1e3 * fit.coefficients['intercept'].value:,.0f} tokens at every state size "
            "that has one; the grid's lengths may be too far apart to tell them"
        )
    unsure = "" if fit.points > len(fit.coefficients) else "; no freedom left for intervals"
    return (
        f"{what}, {fit.form}: T = {form}, R² {fit.r_squared:.3f}, {fit.points} points{unsure} "
        "(T in thousands of tokens, N in millions of elements)"
    )


def beside_published(fit: ThresholdFit) -> str:
    """A linear fit of the forget threshold next to the published line of Mamba-2, in its range."""
    slope, intercept = PUBLISHED
    zero = -intercept / slope
    own = fit.coefficients["slope"]
    within = own.low is not None and own.high is not None and own.low <= slope <= own.high
    if own.low is None:
        relation = "without an interval it is not compared"
    else:
        relation = f"which the interval {'holds' if within else 'does not hold'}"
    return (
        f"published for Mamba-2: a slope of {slope} thousand tokens a million elements, "
        f"{relation}; that line was fitted to states of 0.8 million elements and more, and is "
        f"below zero under {zero:.2f} million"
    )
