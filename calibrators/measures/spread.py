"""Measures of calibration from narrow cells of predictions.

A cell holds the predictions whose log-odds lie in an interval of 1/512; 0 and 1 have cells of their own. Cells of parts
add up, so that no number depends on the division of the rows. A cell represents the middle of its lowest and its
highest prediction; for predictions with few distinct values, as most methods give, this is the prediction itself.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic.double_double import Pair, sums_of_runs, twelve, twelve_digits
from calibrators.arithmetic.passes import Array, Points
from calibrators.measures.assessment import Z_95
from calibrators.measures.engine import Cells, pooled_columns

Integers = npt.NDArray[np.int64]
_SMOOTH_CELLS = 2000
_MOST_ROUNDS = 100
_PARTED = 1e-14
"""Determinant of an information, relative to the product of its diagonal, below which there is no line."""


class Spread(NamedTuple):
    """Cells of predictions, ascending; float64 arrays, shape (cells,).

    p : the middle of the lowest and the highest prediction of each. weight, positives : their sums
    starts : where each column's cells begin, and the end; None: all are of one column
    """

    p: Array
    weight: Array
    positives: Array
    starts: Integers | None = None

    @classmethod
    def of(cls, cells: Cells) -> Spread:
        """Compute them from the engine's cells."""
        weight, positives = cells.sums[:, 0]
        return cls(
            cells.low + (cells.high - cells.low) / 2, weight, np.minimum(positives, weight), cells.starts
        )

    @property
    def columns(self) -> Integers:
        """Start of each column's cells, and the end."""
        return np.array([0, self.p.size]) if self.starts is None else self.starts


@dataclass(frozen=True)
class Agreement:
    """Agreement of predictions with outcomes; None where a number does not exist, with the reason in `reasons`.

    Attributes
    ----------
    intercept, slope, intercept_error, slope_error : float
        Cox's: of logit P = intercept + slope * logit p, by maximum likelihood, and standard errors from the
        information. 0 and 1 if every probability is right; predictions of 0 and 1 are left out. A slope below 1:
        predictions are too extreme. Weights count rows.
    ici, e50, e90 : float in [0, 1]
        Mean, median and 90 % point of the distance between predictions and their isotonic recalibration. Chance
        inflates them, as it does `Decomposition.miscalibration`.
    smooth_ece : float in [0, 1]
        Smooth calibration error: the residuals smoothed by a Gaussian as wide as the error is large. It says little
        where positives are rare.

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
        """The 95 % interval of `intercept` or `slope`."""
        value, error = getattr(self, name), getattr(self, f"{name}_error")
        return None if value is None else (value - Z_95 * error, value + Z_95 * error)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def agreement(spread: Spread, rate: float = 1.0) -> Agreement:
    """The numbers from the cells of one column.

    rate : see `calibrators.arithmetic.sampling`: of a sampled log only Cox's line is taken, which is of all rows.
    """
    reasons: dict[str, str] = {}
    values: dict[str, Any] = {}
    line = lines(spread, rate)[0].tolist()
    if math.isnan(line[0]):
        reasons["slope"] = (
            "not defined, because it needs two different probabilities between 0 and 1, and labels that no line parts"
        )
    else:
        values |= dict(zip(("intercept", "slope", "intercept_error", "slope_error"), line, strict=True))
    if rate == 1.0:
        values |= dict(zip(("ici", "e50", "e90"), distances(spread), strict=True))
        values["smooth_ece"] = smooth_ece(spread)
    else:
        reasons |= dict.fromkeys(("ici", "smooth_ece"), "not taken of a log of sampled rows")
    return Agreement(**values, reasons=reasons)


def lines(spread: Spread, rate: float = 1.0) -> Array:
    """Cox's line of columns: intercept and slope of labels on the log-odds of predictions, and their standard errors.

    rate : of a log of sampled rows, whose log odds are larger by -log(rate) than those of all rows, which the line is
        of. Returns an array of shape (columns, 4); NaN where there is no line.
    """
    found = np.full((spread.columns.size - 1, 4), np.nan)
    inner = (spread.p > 0) & (spread.p < 1)
    sizes = np.add.reduceat(inner.astype(np.int64), spread.columns[:-1])
    p, w, k = (column[inner] for column in spread[:3])
    fit = _Fit(np.log(p) - np.log1p(-p), w, k, sizes, -math.log(rate))
    able = np.flatnonzero(sizes > 1)
    fit = fit.only(sizes > 1)
    both = (fit.sum(fit.k) > 0) & (fit.sum(fit.w - fit.k) > 0)
    able, fit = able[both], fit.only(both)
    a, b = np.zeros(able.size), np.ones(able.size)
    for _ in range(_MOST_ROUNDS):
        if not able.size:
            break
        step_a, step_b, errors = fit.step(a, b)
        sure = ~np.isnan(errors[0])
        length = np.where(sure, np.maximum(np.abs(step_a), np.abs(step_b)), 0.0)
        done = sure & (length < 1e-8 * (1.0 + np.maximum(np.abs(a), np.abs(b))))
        if done.any():
            # Steps square the distance that is left: after one more there is none.
            x, y = (a + step_a)[done], (b + step_b)[done]
            more_a, more_b, errors = fit.only(done).step(x, y)
            found[able[done]] = np.stack([x + more_a, y + more_b, *errors], axis=1)
        scale = np.ones(able.size)
        if (far := sure & ~done & (length > 0.25)).any():
            now = fit.likelihood(a, b)
            while True:
                then = fit.likelihood(a + scale * step_a, b + scale * step_b)
                if not (less := far & ~(then >= now) & (scale > 1e-9)).any():
                    break
                scale = np.where(less, scale / 2.0, scale)
        a, b = a + scale * step_a, b + scale * step_b
        on = sure & ~done & (np.maximum(np.abs(a), np.abs(b)) <= 1e4)
        if not on.all():
            able, fit, a, b = able[on], fit.only(on), a[on], b[on]
    return twelve_digits(found)


class _Fit(NamedTuple):
    """Cells of columns to fit a line to: log-odds, weights and positives; `sizes` of the columns, some may be 0."""

    x: Array
    w: Array
    k: Array
    sizes: Integers
    offset: float

    def only(self, some: npt.NDArray[np.bool_]) -> _Fit:
        """Choose some columns."""
        cells = np.repeat(some, self.sizes)
        return _Fit(self.x[cells], self.w[cells], self.k[cells], self.sizes[some], self.offset)

    def sum(self, values: Array) -> Array:
        """Sum of each column."""
        return np.add.reduceat(values, np.cumsum(self.sizes) - self.sizes) if self.sizes.size else np.empty(0)

    def _log_odds(self, a: Array, b: Array) -> Array:
        return np.asarray(np.repeat(a, self.sizes) + np.repeat(b, self.sizes) * self.x + self.offset)

    def likelihood(self, a: Array, b: Array) -> Array:
        """The logarithms of the likelihoods of lines; infinite or NaN of those that are far off."""
        with np.errstate(over="ignore", invalid="ignore"):
            eta = self._log_odds(a, b)
            gain = self.k * np.minimum(eta, 0.0) - (self.w - self.k) * np.maximum(eta, 0.0)
            return self.sum(gain - self.w * np.log1p(np.exp(-np.abs(eta))))

    def step(self, a: Array, b: Array) -> tuple[Array, Array, tuple[Array, Array]]:
        """Newton's steps from lines, and the lines' standard errors; NaN where the information tells no line."""
        eta = self._log_odds(a, b)
        small = np.exp(-np.abs(eta))
        small = small / (1.0 + small)
        # Of the rarer label, so that no digits are lost where nearly all rows have the other.
        left = np.where(eta < 0, self.k - self.w * small, self.w * small - (self.w - self.k))
        v = self.w * small * (1.0 - small)
        vx = v * self.x
        g, along, one, across, square = map(self.sum, (left, self.x * left, v, vx, vx * self.x))
        determinant = (Pair.of(one) * square - Pair.of(across) * across).high
        with np.errstate(all="ignore"):
            determinant = np.where(determinant > _PARTED * one * square, determinant, np.nan)
            step_a = (square * g - across * along) / determinant
            step_b = (one * along - across * g) / determinant
            return step_a, step_b, (np.sqrt(square / determinant), np.sqrt(one / determinant))


def distances(spread: Spread) -> tuple[float, float, float]:
    """Mean, median and 90 % point of |p - c|, c the isotonic regression of the labels on the predictions."""
    apart = _apart(spread)
    order = np.argsort(apart, kind="stable")
    through = np.cumsum(spread.weight[order])
    points = apart[order][np.searchsorted(through, np.array([0.5, 0.9]) * through[-1])]
    return float(mean_distances(spread)[0]), twelve(points[0]), twelve(points[1])


def mean_distances(spread: Spread) -> Array:
    """The first of `distances`, of columns."""
    total = sums_of_runs(spread.weight * _apart(spread), spread.columns)
    return twelve_digits(total / sums_of_runs(spread.weight, spread.columns))


def _apart(spread: Spread) -> Array:
    blocks, _ = pooled_columns(Points(*spread[:3]), spread.columns)
    sizes = np.diff(np.append(blocks.first, spread.p.size)).astype(np.int64)
    return np.asarray(np.abs(spread.p - np.repeat(blocks.level, sizes)))


def smooth_ece(spread: Spread) -> float:
    """The smooth calibration error: residuals on 2,001 cells, a Gaussian reflected at 0 and 1, as wide as it is."""
    at = np.rint(spread.p * _SMOOTH_CELLS).astype(np.int64)
    residual = np.bincount(at, spread.positives - spread.weight * spread.p, _SMOOTH_CELLS + 1)
    residual = residual / spread.weight.sum()
    # Reflected at both ends: a period of twice the interval.
    around = np.concatenate([residual, residual[-2:0:-1]])
    spectrum = np.fft.rfft(around)
    frequency = 2.0 * np.pi * np.arange(spectrum.size) / 2.0

    def error(width: float) -> float:
        smoothed = np.fft.irfft(spectrum * np.exp(-0.5 * (width * frequency) ** 2), around.size)
        inside = np.abs(smoothed[: _SMOOTH_CELLS + 1])
        # A residual at an end has no image, and counts whole.
        return float(inside[1:-1].sum() + inside[0] / 2 + inside[-1] / 2)

    low, high = 0.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if error(middle) > middle else (low, middle)
    return twelve(high)
