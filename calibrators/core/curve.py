"""Posterior of a smooth curve of log-odds as a function of the score, given cells of the observations.

The curve's prior mean is the score itself. Its terms are the shift and slope of the score's log-odds, the term of
beta calibration, and cosines of the rank. The posterior is averaged over their prior variances, weighted by evidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from calibrators.core.arrays import Array
from calibrators.core.fine_cells import FineCells
from calibrators.core.kernels import likelihood as kernel
from calibrators.core.log_odds import exp_of_negative, log_of, logistic
from calibrators.core.log_odds import log_odds as log_odds_within

COARSE = 800
"""Largest number of cells to which the curve is fitted."""

TERMS = 64
TAUS = (3.0, 1.0, 0.3, 0.1, 0.03)
ORDERS = (1, 2)
SIGMAS = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
_LINE = 3
_LINE_SPREADS = np.array([0.5, 0.5, 1.0])
"""Prior standard deviations of slope, certainty and shift, in units of tau."""

LOW, HIGH = 1e-300, 1.0 - 2.0**-53
LEAST = 1e-12
"""Smallest distance of a probability from 0 and from 1."""

_CERTAIN = 1e-3
_TAIL_WEIGHT = 1e-9
_STEP = 0.25
_MOST_STEPS, _SMALLEST_SCALE, _SMALLEST_GAIN = 50, 1e-6, 1e-4
_FARTHEST = 1e15
_QUARTILES = 1.3489795003921634  # interquartile range of the standard normal distribution
_LARGEST = 1.7e308


expit = logistic


def log_odds(probability: Array) -> Array:
    """Return log p - log(1 - p) of probabilities clipped to [1e-300, 1 - 2**-53]."""
    return log_odds_within(np.clip(probability, LOW, HIGH))


def clipped_log_odds(f: Array) -> Array:
    """Clip log-odds to those of probabilities in [1e-12, 1 - 1e-12]."""
    low = float(log_odds(np.array([LEAST]))[0])
    return np.asarray(np.clip(f, low, -low))


# Score axis and cells


@dataclass(frozen=True)
class ScoreAxis:
    """Axis of the curve: log-odds of scores that are probabilities, or standardised margins.

    Attributes
    ----------
    margins : whether the scores are margins
    centre, spread : centre and scale of margins; for probabilities, the shift of the log-odds and 1
    """

    margins: bool
    centre: float
    spread: float

    def positions(self, scores: Array) -> Array:
        """Convert scores to positions; monotone."""
        if not self.margins:
            return log_odds(scores) - self.centre
        # Halves, because differences may overflow.
        with np.errstate(over="ignore"):
            positions = (scores / 2 - self.centre / 2) / (self.spread / 2)
        return np.clip(positions, -_FARTHEST, _FARTHEST)

    def scores(self, positions: Array) -> Array:
        """Convert positions to scores."""
        if not self.margins:
            return expit(positions + self.centre)
        with np.errstate(over="ignore"):
            return np.clip(self.centre + positions * self.spread, -_LARGEST, _LARGEST)


def score_axis(cells: FineCells, rate: float) -> ScoreAxis:
    """Return the axis for these cells. rate : see `calibrators.base.Sampling`.

    Scores that are probabilities refer to all rows; the odds among the existing rows are 1 / rate times as high.
    """
    if cells.first[0] >= 0 and cells.last[-1] <= 1:
        return ScoreAxis(False, math.log(rate), 1.0)
    middle = cells.first / 2 + cells.last / 2
    cumulative = np.cumsum(cells.weight)
    cumulative /= cumulative[-1]

    def quantile(share: float) -> float:
        return float(middle[min(int(np.searchsorted(cumulative, share)), middle.size - 1)])

    for tail, width in ((0.25, _QUARTILES), (0.05, 3.2897), (0.0, 4.0)):
        low, high = (cells.first[0], cells.last[-1]) if tail == 0 else (quantile(tail), quantile(1 - tail))
        spread = min((high / 2 - low / 2) / width, 8e307) * 2
        if spread > 0:
            return ScoreAxis(True, quantile(0.5), float(spread))
    return ScoreAxis(True, float(middle[0]), 1.0)


class Cells(NamedTuple):
    """Cells on the score axis; float64 arrays, shape (cells,), ascending.

    position, clipped : mean position of the observations, and the position clipped by `_limit`
    weight, positives : sums
    step, rank : share of the labels in the cell and below its middle: the mean of the shares of both labels
    """

    position: Array
    clipped: Array
    weight: Array
    positives: Array
    step: Array
    rank: Array


def cells_on(axis: ScoreAxis, fine: FineCells) -> Cells:
    """Convert fine cells to cells, each at the middle of the positions of its first and last score."""
    position = axis.positions(fine.first)
    wide = fine.last > fine.first
    position[wide] = position[wide] / 2 + axis.positions(fine.last[wide]) / 2
    return _cells(
        position, np.clip(position, -_limit(fine.weight), _limit(fine.weight)), fine.weight, fine.positives
    )


def with_counts(cells: Cells, weight: Array, positives: Array) -> Cells:
    """Return the nonempty cells with the counts of a part of the observations. weight, positives : of each cell."""
    nonempty = weight > 0
    return _cells(cells.position[nonempty], cells.clipped[nonempty], weight[nonempty], positives[nonempty])


def _limit(weight: Array) -> float:
    """Return the largest log-odds, in absolute value, that so many observations can verify."""
    return max(1.0, math.log(max(float(weight.sum()), 1.0)))


def _cells(position: Array, clipped: Array, weight: Array, positives: Array) -> Cells:
    """Make cells; compute their steps and ranks."""
    step = np.zeros(weight.size)
    labels = 0
    for label_weight in (positives, weight - positives):
        total = float(label_weight.sum())
        if total > 0:
            step += label_weight / total
            labels += 1
    step /= labels
    return Cells(position, clipped, weight, positives, step, np.clip(np.cumsum(step) - step / 2, 0.0, 1.0))


def merge_cells(cells: Cells, most: int) -> Cells:
    """Merge cells to at most `most` cells with nearly equal steps in rank."""
    if cells.position.size <= most:
        return cells
    at = np.minimum((cells.rank * most).astype(np.int64), most - 1)
    at = np.cumsum(np.diff(at, prepend=at[0]) > 0)
    mass, step = (np.bincount(at, c).astype(np.float64) for c in (cells.weight, cells.step))
    # If the steps are rounded to 0, use the unweighted mean of the ranks.
    count = np.bincount(at)
    rank = np.where(step > 0, np.bincount(at, cells.step * cells.rank), np.bincount(at, cells.rank))
    return Cells(
        np.bincount(at, cells.weight * cells.position) / mass,
        np.bincount(at, cells.weight * cells.clipped) / mass,
        mass,
        np.bincount(at, cells.positives).astype(np.float64),
        step,
        np.clip(rank / np.where(step > 0, step, count), 0.0, 1.0),
    )


# The curve


class _Prior(NamedTuple):
    """Prior: its setting (tau, order, sigma), and the variances of its terms."""

    setting: tuple[float, float, float]
    variance: Array


def _priors() -> list[_Prior]:
    priors = []
    j = np.arange(1, TERMS + 1)
    for tau in TAUS:
        line_variance = (tau * _LINE_SPREADS) ** 2
        for order in ORDERS:
            for sigma in SIGMAS:
                if sigma == 0 and order != ORDERS[0]:
                    continue
                cosine_variance = sigma**2 / (j if order == 1 else j * j).astype(np.float64) ** 2
                variance = np.concatenate([line_variance, cosine_variance]) if sigma else line_variance
                priors.append(_Prior((tau, order, sigma), variance))
    return priors


_PRIORS = _priors()
_ORDER = np.arange(TERMS + 1)
_SUM, _DIFFERENCE = _ORDER[:, np.newaxis] + _ORDER, np.abs(_ORDER[:, np.newaxis] - _ORDER)


def _table(z: Array, certainty: Array, rank: Array) -> Array:
    """Return the columns z, certainty, and cos(pi j rank) for j = 0, ..., 128.

    There are twice as many cosines as terms, because a product of two cosines is a sum of two others.
    """
    out = np.empty((z.size, _LINE + 2 * TERMS))
    out[:, 0], out[:, 1] = z, certainty
    out[:, _LINE - 1 :] = cosines(rank, 2 * TERMS + 1)
    return out


def cosines(u: Array, count: int) -> Array:
    """Return the columns cos(pi j u), 0 <= u <= 1, for j = 0, ..., count - 1; count > 1."""
    out = np.empty((u.size, count))
    # Rows lie together, so that each column of the whole would write to every line of its memory.
    for start in range(0, u.size, _BLOCK):
        block = out[start : start + _BLOCK]
        before, cosine = np.ones(len(block)), _cosine(u[start : start + _BLOCK])
        block[:, 0], block[:, 1] = before, cosine
        twice = 2.0 * cosine
        for j in range(2, count):
            before, cosine = cosine, twice * cosine - before
            block[:, j] = cosine
    return out


_BLOCK = 4096
"""Rows whose cosines fit into the processor's cache."""


def _cosine(u: Array) -> Array:
    """Return cos(pi u), 0 <= u <= 1, as sin(pi (1/2 - u)) by its Taylor series."""
    x = math.pi * (0.5 - u)
    square = x * x
    total = np.ones(u.size)
    for j in range(25, 2, -2):
        total = 1.0 - square / (j * (j - 1.0)) * total
    return x * total


class Posterior:
    """Posterior of the curve's terms, given cells; its modes and evidence are computed by Newton's method.

    table : see `_table`
    offset, weight, positives : float64 arrays, shape (cells,): prior mean, and the observations
    """

    def __init__(self, table: Array, offset: Array, weight: Array, positives: Array) -> None:
        self.table = table
        self._cells = offset, weight, positives
        self._state = np.empty((2, offset.size))
        self._trial = np.empty((2, offset.size))
        self._zero = np.empty((2, offset.size))
        self._zero_value = self._likelihood(np.zeros(1), self._zero)

    def _likelihood(self, theta: Array, into: Array) -> float:
        return float(kernel.likelihood(self.table, theta, self._cells, into))

    @np.errstate(over="ignore")  # steps are halved until nothing overflows
    def mode(self, variance: Array, start: Array) -> tuple[Array, float]:
        """Return the mode, and Laplace's log evidence up to a constant; steps that reduce the posterior are halved."""
        theta = start
        value = self._likelihood(theta, self._state) - 0.5 * float((theta * theta / variance).sum())
        if self._zero_value > value:
            theta, value = np.zeros(variance.size), self._zero_value
            self._state[:] = self._zero
        determinant = 0.0
        for _ in range(_MOST_STEPS):
            gradient, step, determinant, _ = self._step(variance, theta)
            expected_gain = float((gradient * step).sum())
            scale = 1.0
            while True:
                tried = theta + scale * step
                new = self._likelihood(tried, self._trial) - 0.5 * float((tried * tried / variance).sum())
                if new >= value or scale < _SMALLEST_SCALE:
                    break
                scale *= 0.5
            if new > value:
                theta, value = tried, new
                self._state, self._trial = self._trial, self._state
            if not expected_gain >= _SMALLEST_GAIN:
                break
        return theta, value - 0.5 * float(log_of(variance).sum()) - determinant

    def factor(self, variance: Array, theta: Array) -> Array:
        """Return the Cholesky factor of the posterior's inverse covariance at a mode, by Laplace's approximation."""
        self._likelihood(theta, self._state)
        return self._step(variance, theta)[3]

    def _step(self, variance: Array, theta: Array) -> tuple[Array, Array, float, Array]:
        """Return gradient, Newton step, and half the log determinant and the Cholesky factor of the Hessian."""
        size = variance.size
        columns = _LINE if size == _LINE else self.table.shape[1]
        info, miss = self._state
        weights = np.stack([miss, info * self.table[:, 0], info * self.table[:, 1], info])
        sums = np.empty((4, columns))
        kernel.column_sums(weights, self.table, columns, sums)
        h = np.empty((size, size))
        h[0], h[1] = sums[1, :size], sums[2, :size]
        h[2:, 0], h[2:, 1] = h[0, 2:], h[1, 2:]
        # A product of two cosines is half the sum of two others.
        terms = size - 2
        cosines = sums[3, 2:]
        h[2:, 2:] = 0.5 * (cosines[_SUM[:terms, :terms]] + cosines[_DIFFERENCE[:terms, :terms]])
        h[np.arange(size), np.arange(size)] += 1.0 / variance
        gradient = sums[0, :size] - theta / variance
        step = np.empty(size)
        determinant = float(kernel.solve(h, gradient, step))
        return gradient, step, determinant, h


@dataclass(frozen=True)
class Curve:
    """Non-decreasing curve of log-odds by position, linear between knots and constant outside.

    Attributes
    ----------
    cells : cells to which it was fitted
    limit : largest absolute log-odds, see `_limit`
    thetas : float64 array, shape (priors, terms): the modes; 0 for terms that a prior does not have
    share : float64 array, shape (priors,): posterior probability of each prior, by evidence
    """

    cells: Cells
    limit: float
    thetas: Array
    share: Array

    @cached_property
    def _centres(self) -> tuple[float, float]:
        p = np.clip(expit(self.cells.clipped), _CERTAIN, 1 - _CERTAIN)
        info = self.cells.weight * p * (1 - p)
        total = float(info.sum())
        return float((info * self.cells.clipped).sum()) / total, float(
            (info * _certainties(self.cells.clipped)).sum()
        ) / total

    def table(self, clipped: Array, rank: Array) -> Array:
        """Return the columns of `_table` at positions."""
        m, k = self._centres
        return _table(clipped - m, _certainties(clipped) - k, rank)

    @cached_property
    def _knots(self) -> tuple[Array, Array, Array, slice]:
        """Positions of the knots, clipped positions, the terms there, and the slice of knots at cells."""
        cells = self.cells
        low = _tail(-self.limit, cells.position[0])
        high = -_tail(-self.limit, -cells.position[-1])[::-1]
        position = np.concatenate([low, cells.position, high])
        inner = slice(low.size, low.size + cells.position.size)
        clipped = np.clip(position, -self.limit, self.limit)
        clipped[inner] = cells.clipped
        rank = np.concatenate(
            [np.full(low.size, cells.rank[0]), cells.rank, np.full(high.size, cells.rank[-1])]
        )
        return position, clipped, self.table(clipped, rank)[:, : _LINE + TERMS], inner

    @cached_property
    def knots(self) -> tuple[Array, Array]:
        """Strictly ascending positions, and the curve's log-odds there."""
        position, clipped, basis, _ = self._knots
        odds = clipped + _dot(basis, _average(self.share, self.thetas))
        distinct = np.append(True, np.diff(position) > 0)
        return position[distinct], self._pooled(odds)[distinct]

    def _pooled(self, odds: Array) -> Array:
        """Pool falling log-odds of the knots to the mean probability of the observations there.

        So the expected number of positives of each pooled range does not change. Knots beyond the cells have no
        observations and a weight near 0.
        """
        if np.all(odds[1:] >= odds[:-1]):
            return odds
        inner = self._knots[3]
        weight, p = np.full(odds.size, _TAIL_WEIGHT), expit(odds)
        weight[inner] += self.cells.weight
        pooled = kernel.isotonic_fit(p, weight)
        # Where nothing was pooled, log-odds of probabilities near 1 would be rounded; and they may fall where
        # probabilities round to one number.
        return np.asarray(kernel.isotonic_fit(np.where(pooled == p, odds, log_odds(pooled)), weight))

    def at(self, position: Array) -> Array:
        """Return the curve's log-odds at positions."""
        return np.interp(position, *self.knots)

    def averages(self) -> dict[str, float]:
        """Return posterior means of the priors' settings: scales of line and cosines, and order of the cosines."""
        settings = np.array([prior.setting for prior in _PRIORS])
        tau, order, sigma = (float(x) for x in (self.share[:, np.newaxis] * settings).sum(axis=0))
        return {"tau": tau, "order": order, "sigma": sigma}

    def draws(self, normal: Array) -> tuple[Array, Array]:
        """Draw from the posterior.

        normal : float64 array, shape (draws, terms): draws from the standard normal distribution

        Returns
        -------
        positions of the knots, and non-decreasing log-odds there, shape (draws, knots)
        """
        position, clipped, basis, _ = self._knots
        posterior, count = _posterior(self), len(normal)
        prior_of = np.searchsorted(np.cumsum(self.share), (np.arange(count) + 0.5) / count)
        prior_of = np.minimum(prior_of, self.share.size - 1)
        curves = np.empty((count, position.size))
        for g in np.unique(prior_of):
            drawn, variance = np.flatnonzero(prior_of == g), _PRIORS[g].variance
            size = variance.size
            factor = posterior.factor(variance, self.thetas[g, :size])
            step = np.empty((size, drawn.size))
            for j in range(size - 1, -1, -1):
                remainder = normal[drawn, j] - (factor[j + 1 :, j, np.newaxis] * step[j + 1 :]).sum(axis=0)
                step[j] = remainder / factor[j, j]
            terms = self.thetas[g, :size, np.newaxis] + step
            for draw, theta in zip(drawn, terms.T, strict=True):
                curves[draw] = self._pooled(clipped + _dot(basis[:, :size], theta))
        distinct = np.append(True, np.diff(position) > 0)
        return position[distinct], curves[:, distinct]


def _posterior(curve: Curve) -> Posterior:
    cells = curve.cells
    return Posterior(curve.table(cells.clipped, cells.rank), cells.clipped, cells.weight, cells.positives)


def fit_curve(cells: Cells, start_curve: Curve | None = None) -> Curve:
    """Fit the curve to cells. start_curve : curve whose modes are the initial values."""
    limit = _limit(cells.weight) if start_curve is None else start_curve.limit
    thetas = np.zeros((len(_PRIORS), _LINE + TERMS))
    curve = Curve(merge_cells(cells, COARSE), limit, thetas, np.empty(0))
    posterior = _posterior(curve)
    evidence = np.empty(len(_PRIORS))
    latest = np.zeros(_LINE + TERMS)
    for g, prior in enumerate(_PRIORS):
        size = prior.variance.size
        start = (latest if start_curve is None else start_curve.thetas[g])[:size]
        thetas[g, :size], evidence[g] = posterior.mode(prior.variance, start)
        latest = thetas[g]
    share = np.empty(evidence.size)
    for g, excess in enumerate((evidence - evidence.max()).tolist()):
        share[g] = math.exp(max(excess, -700.0)) if excess > -700.0 else 0.0
    share /= share.sum()
    return Curve(curve.cells, limit, thetas, share)


def _tail(farthest: float, end: float) -> Array:
    """Return evenly spaced positions from `farthest` to `end`, the end of the cells; none if end <= farthest."""
    if end <= farthest:
        return np.empty(0)
    count = math.ceil((end - farthest) / _STEP)
    return np.linspace(farthest, end, count + 1)[:-1]


def _certainties(clipped: Array) -> Array:
    """Return log sigma(z) + log sigma(-z)."""
    return -(np.abs(clipped) + 2.0 * log_of(1.0 + exp_of_negative(-np.abs(clipped))))


def _average(share: Array, thetas: Array) -> Array:
    return np.asarray((share[:, np.newaxis] * thetas).sum(axis=0))


def _dot(basis: Array, theta: Array) -> Array:
    return np.asarray((basis * theta).sum(axis=1))
