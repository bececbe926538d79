"""Measures of calibration from cells of predictions.

Each of up to 20,000 distinct predictions is a cell, and the measures are exact. With more, a cell contains the
predictions in an interval of log odds of width 1/512, and is represented by the middle of its lowest and highest one; 0
and 1 have cells of their own. Cells of parts add up, so that no number depends on the division of the rows.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from calibrators.core.arrays import Array, Integers, Mask
from calibrators.core.double_double import Pair, sums_of_runs, twelve, twelve_digits
from calibrators.core.passes import Points
from calibrators.measures.assessment import Z_95
from calibrators.measures.engine import PredictionCells, pooled_columns

_SMOOTH_CELLS = 2000
_MOST_ROUNDS = 100
_SINGULAR = 1e-14
"""Ratio of the information matrix's determinant to its diagonal product below which it counts as singular."""


class Spread(NamedTuple):
    """Cells of predictions, ascending; float64 arrays, shape (cells,).

    p : middle of the lowest and the highest prediction of each cell. weight, positives : sums of each cell
    starts : index of each column's first cell, and the number of cells; None: one column
    """

    p: Array
    weight: Array
    positives: Array
    starts: Integers | None = None

    @classmethod
    def of(cls, cells: PredictionCells) -> Spread:
        """Convert the engine's cells."""
        weight, positives = cells.sums[:, 0]
        return cls(
            cells.low + (cells.high - cells.low) / 2, weight, np.minimum(positives, weight), cells.starts
        )

    @property
    def columns(self) -> Integers:
        """Index of each column's first cell, and the number of cells."""
        return np.array([0, self.p.size]) if self.starts is None else self.starts


@dataclass(frozen=True)
class Agreement:
    """Agreement of predictions with outcomes; None where a number does not exist, with the reason in `reasons`.

    Attributes
    ----------
    intercept, slope, intercept_error, slope_error : float
        Cox's line logit P = intercept + slope * logit p, by maximum likelihood, and standard errors from the
        information matrix. 0 and 1 if every probability is right; a slope below 1 means that predictions are too
        extreme. Predictions of 0 and 1 are left out. Weights count rows.
    ici, e50, e90 : float in [0, 1]
        Mean, median and 90 % point of the distance between predictions and their isotonic recalibration. Chance
        inflates them, as it does `Decomposition.miscalibration`.
    smooth_ece : float in [0, 1]
        Smooth calibration error: the residuals smoothed by a Gaussian as wide as the error is large. It is not
        informative if positives are rare.

    References
    ----------
    Cox (1958), "Two further applications of a model for binary regression", Biometrika 45, 562-565.
    Austin & Steyerberg (2019), "The Integrated Calibration Index (ICI) and related metrics", Statistics in Medicine 38,
    4051-4065, doi:10.1002/sim.8281.
    Blasiok & Nakkiran (2024), "Smooth ECE: principled reliability diagrams via kernel smoothing", ICLR.
    """

    intercept: float | None = None
    slope: float | None = None
    intercept_error: float | None = None
    slope_error: float | None = None
    ici: float | None = None
    e50: float | None = None
    e90: float | None = None
    smooth_ece: float | None = None
    reasons: dict[str, str] = field(default_factory=dict)

    def interval(self, name: str) -> tuple[float, float] | None:
        """Return the 95 % interval of `intercept` or `slope`."""
        value, error = getattr(self, name), getattr(self, f"{name}_error")
        return None if value is None else (value - Z_95 * error, value + Z_95 * error)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def agreement(spread: Spread, rate: float = 1.0) -> Agreement:
    """Compute the agreement of one column from its cells.

    rate : see `calibrators.core.sampling`: for a sampled log only Cox's line is computed; it describes all rows
    """
    reasons: dict[str, str] = {}
    values: dict[str, Any] = {}
    line = lines(spread, rate)[0].tolist()
    if math.isnan(line[0]):
        reasons["slope"] = (
            "not defined, because it needs two different probabilities in (0, 1) and labels that no threshold separates"
        )
    else:
        values |= dict(zip(("intercept", "slope", "intercept_error", "slope_error"), line, strict=True))
    if rate == 1.0:
        values |= dict(zip(("ici", "e50", "e90"), distances(spread), strict=True))
        values["smooth_ece"] = smooth_ece(spread)
    else:
        reasons |= dict.fromkeys(("ici", "smooth_ece"), "not computed for a log of sampled rows")
    return Agreement(**values, reasons=reasons)


def lines(spread: Spread, rate: float = 1.0) -> Array:
    """Fit Cox's line to each column: intercept and slope of labels on log odds of predictions, and standard errors.

    rate : sampling rate of the log: log odds of sampled rows are larger by -log(rate) than those of all rows, which
        the line describes. Returns an array of shape (columns, 4); NaN where there is no line.
    """
    result = np.full((spread.columns.size - 1, 4), np.nan)
    inner = (spread.p > 0) & (spread.p < 1)
    sizes = np.add.reduceat(inner.astype(np.int64), spread.columns[:-1])
    p, w, k = (column[inner] for column in spread[:3])
    fit = _LogitCells(np.log(p) - np.log1p(-p), w, k, sizes, -math.log(rate))
    active = np.flatnonzero(sizes > 1)
    fit = fit.only(sizes > 1)
    both = (fit.sum(fit.k) > 0) & (fit.sum(fit.w - fit.k) > 0)
    active, fit = active[both], fit.only(both)
    a, b = np.zeros(active.size), np.ones(active.size)
    for _ in range(_MOST_ROUNDS):
        if not active.size:
            break
        step_a, step_b, errors = fit.step(a, b)
        regular = ~np.isnan(errors[0])
        length = np.where(regular, np.maximum(np.abs(step_a), np.abs(step_b)), 0.0)
        done = regular & (length < 1e-8 * (1.0 + np.maximum(np.abs(a), np.abs(b))))
        if done.any():
            # Newton's method converges quadratically: after one more step the error is below rounding.
            x, y = (a + step_a)[done], (b + step_b)[done]
            last_a, last_b, errors = fit.only(done).step(x, y)
            result[active[done]] = np.stack([x + last_a, y + last_b, *errors], axis=1)
        scale = np.ones(active.size)
        if (long_step := regular & ~done & (length > 0.25)).any():
            likelihood = fit.likelihood(a, b)
            while True:
                stepped = fit.likelihood(a + scale * step_a, b + scale * step_b)
                if not (worse := long_step & ~(stepped >= likelihood) & (scale > 1e-9)).any():
                    break
                scale = np.where(worse, scale / 2.0, scale)
        a, b = a + scale * step_a, b + scale * step_b
        go_on = regular & ~done & (np.maximum(np.abs(a), np.abs(b)) <= 1e4)
        if not go_on.all():
            active, fit, a, b = active[go_on], fit.only(go_on), a[go_on], b[go_on]
    return twelve_digits(result)


class _LogitCells(NamedTuple):
    """Log odds, weights and positives of cells. sizes : number of cells of each column. offset : added to log odds."""

    x: Array
    w: Array
    k: Array
    sizes: Integers
    offset: float

    def only(self, chosen: Mask) -> _LogitCells:
        """Select columns. chosen : mask."""
        cells = np.repeat(chosen, self.sizes)
        return _LogitCells(self.x[cells], self.w[cells], self.k[cells], self.sizes[chosen], self.offset)

    def sum(self, values: Array) -> Array:
        """Sum values over the cells of each column."""
        return np.add.reduceat(values, np.cumsum(self.sizes) - self.sizes) if self.sizes.size else np.empty(0)

    def _log_odds(self, a: Array, b: Array) -> Array:
        return np.asarray(np.repeat(a, self.sizes) + np.repeat(b, self.sizes) * self.x + self.offset)

    def likelihood(self, a: Array, b: Array) -> Array:
        """Compute the log likelihoods of lines with intercepts a and slopes b; infinite or NaN if they overflow."""
        with np.errstate(over="ignore", invalid="ignore"):
            eta = self._log_odds(a, b)
            gain = self.k * np.minimum(eta, 0.0) - (self.w - self.k) * np.maximum(eta, 0.0)
            return self.sum(gain - self.w * np.log1p(np.exp(-np.abs(eta))))

    def step(self, a: Array, b: Array) -> tuple[Array, Array, tuple[Array, Array]]:
        """Compute Newton steps from lines, and standard errors; NaN where the information matrix is singular."""
        eta = self._log_odds(a, b)
        rarer = np.exp(-np.abs(eta))
        rarer = rarer / (1.0 + rarer)
        # The residual is computed from the rarer label, which loses no digits if nearly all rows have the other.
        residual = np.where(eta < 0, self.k - self.w * rarer, self.w * rarer - (self.w - self.k))
        v = self.w * rarer * (1.0 - rarer)
        vx = v * self.x
        g, along, total, across, square = map(self.sum, (residual, self.x * residual, v, vx, vx * self.x))
        determinant = (Pair.of(total) * square - Pair.of(across) * across).high
        with np.errstate(all="ignore"):
            determinant = np.where(determinant > _SINGULAR * total * square, determinant, np.nan)
            step_a = (square * g - across * along) / determinant
            step_b = (total * along - across * g) / determinant
            return step_a, step_b, (np.sqrt(square / determinant), np.sqrt(total / determinant))


def distances(spread: Spread) -> tuple[float, float, float]:
    """Compute mean, median and 90 % point of |p - c|, c the isotonic regression of the labels on the predictions."""
    distance = _recalibration_distances(spread)
    order = np.argsort(distance, kind="stable")
    cumulative = np.cumsum(spread.weight[order])
    quantiles = distance[order][np.searchsorted(cumulative, np.array([0.5, 0.9]) * cumulative[-1])]
    return float(mean_distances(spread)[0]), twelve(quantiles[0]), twelve(quantiles[1])


def mean_distances(spread: Spread) -> Array:
    """Compute the mean of `distances` for each column."""
    total = sums_of_runs(spread.weight * _recalibration_distances(spread), spread.columns)
    return twelve_digits(total / sums_of_runs(spread.weight, spread.columns))


def _recalibration_distances(spread: Spread) -> Array:
    blocks, _ = pooled_columns(Points(*spread[:3]), spread.columns)
    sizes = np.diff(np.append(blocks.first, spread.p.size)).astype(np.int64)
    return np.asarray(np.abs(spread.p - np.repeat(blocks.level, sizes)))


def smooth_ece(spread: Spread) -> float:
    """Compute the smooth calibration error on 2,001 cells: the width of a Gaussian that equals the smoothed error."""
    cell = np.rint(spread.p * _SMOOTH_CELLS).astype(np.int64)
    residual = np.bincount(cell, spread.positives - spread.weight * spread.p, _SMOOTH_CELLS + 1)
    residual = residual / spread.weight.sum()
    residual[[0, -1]] *= 2.0  # an end coincides with its mirror image
    # Reflection at both ends gives a periodic function, with twice the interval as period.
    reflected = np.concatenate([residual, residual[-2:0:-1]])
    spectrum = np.fft.rfft(reflected)
    frequency = 2.0 * np.pi * np.arange(spectrum.size) / 2.0

    def error(width: float) -> float:
        smoothed = np.fft.irfft(spectrum * np.exp(-0.5 * (width * frequency) ** 2), reflected.size)
        inside = np.abs(smoothed[: _SMOOTH_CELLS + 1])
        # Integrate by the trapezoidal rule.
        return float(inside[1:-1].sum() + inside[0] / 2 + inside[-1] / 2)

    low, high = 0.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if error(middle) > middle else (low, middle)
    return twelve(high)
