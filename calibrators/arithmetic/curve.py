"""A smooth curve of log-odds along the score: its posterior, given cells of the observations.

The curve's prior mean is the score itself. Its terms are a shift and a stretch of the score's log-odds, the term of
beta calibration, and cosines of the rank; their prior variances are not chosen but averaged over by evidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from calibrators._kernels import likelihood as kernel
from calibrators.arithmetic.fine_cells import FineCells
from calibrators.arithmetic.log_odds import exp_of_negative, log_of, logistic
from calibrators.arithmetic.log_odds import log_odds as log_odds_within
from calibrators.arithmetic.passes import Array

COARSE = 800
"""Cells at most that the curve is fitted to."""

TERMS = 64
TAUS = (3.0, 1.0, 0.3, 0.1, 0.03)
ORDERS = (1, 2)
SIGMAS = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
_LINE = 3
_LINE_SPREADS = np.array([0.5, 0.5, 1.0])
"""Spreads of span, certainty and shift, in units of tau."""

LOW, HIGH = 1e-300, 1.0 - 2.0**-53
LEAST = 1e-12
"""Least distance of a probability from 0 and from 1."""

_CERTAIN = 1e-3
_LIGHT = 1e-9
_STEP = 0.25
_ROUNDS, _SHORTEST, _CLOSE = 50, 1e-6, 1e-4
_FARTHEST = 1e15
_QUARTILES = 1.3489795003921634  # of a normal distribution, from the lower to the upper one
_LARGEST = 1.7e308


expit = logistic


def log_odds(probability: Array) -> Array:
    """Log p - log(1 - p) of probabilities held in [1e-300, 1 - 2**-53]."""
    return log_odds_within(np.clip(probability, LOW, HIGH))


def clipped_log_odds(f: Array) -> Array:
    """Log-odds held to those of probabilities in [1e-12, 1 - 1e-12]."""
    low = float(log_odds(np.array([LEAST]))[0])
    return np.asarray(np.clip(f, low, -low))


# Scores as places on a line


@dataclass(frozen=True)
class ScoreAxis:
    """Scores on the axis on which the curve is a line: their log-odds; standardised margins.

    Attributes
    ----------
    margins : whether scores are margins
    centre, spread : of margins; of probabilities the shift of the log-odds, and 1
    """

    margins: bool
    centre: float
    spread: float

    def positions(self, scores: Array) -> Array:
        """Scores to places, ascending where they are."""
        if not self.margins:
            return log_odds(scores) - self.centre
        # Halves, because differences may overflow.
        with np.errstate(over="ignore"):
            positions = (scores / 2 - self.centre / 2) / (self.spread / 2)
        return np.clip(positions, -_FARTHEST, _FARTHEST)

    def scores(self, positions: Array) -> Array:
        """Places to scores."""
        if not self.margins:
            return expit(positions + self.centre)
        with np.errstate(over="ignore"):
            return np.clip(self.centre + positions * self.spread, -_LARGEST, _LARGEST)


def score_axis(cells: FineCells, rate: float) -> ScoreAxis:
    """The line for these cells; rate : see `Calibrator.sampling_rate`.

    Probabilities are those of all rows: among the rows that there are, the odds are 1 / rate times as high.
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
    """Cells on the line; float64 arrays, shape (cells,), ascending.

    place, held : the mean places of the observations, as they are and held within what so many can verify
    weight, positives : sums
    step, rank : how much of either label lies in the cell, and below its middle: the means of the two shares
    """

    position: Array
    clipped: Array
    weight: Array
    positives: Array
    step: Array
    rank: Array


def cells_on(axis: ScoreAxis, fine: FineCells) -> Cells:
    """Fine cells on the line: each at the middle of the places of its first and last score."""
    position = axis.positions(fine.first)
    wide = fine.last > fine.first
    position[wide] = position[wide] / 2 + axis.positions(fine.last[wide]) / 2
    return _ranked(
        position, np.clip(position, -_most(fine.weight), _most(fine.weight)), fine.weight, fine.positives
    )


def with_counts(cells: Cells, weight: Array, positives: Array) -> Cells:
    """The cells that hold some of other cells' observations, where they hold any."""
    nonempty = weight > 0
    return _ranked(cells.position[nonempty], cells.clipped[nonempty], weight[nonempty], positives[nonempty])


def _most(weight: Array) -> float:
    """Log-odds beyond which so many observations cannot verify any."""
    return max(1.0, math.log(max(float(weight.sum()), 1.0)))


def _ranked(position: Array, clipped: Array, weight: Array, positives: Array) -> Cells:
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
    """Pool into at most so many cells, of nearly equal steps in rank."""
    if cells.position.size <= most:
        return cells
    at = np.minimum((cells.rank * most).astype(np.int64), most - 1)
    at = np.cumsum(np.diff(at, prepend=at[0]) > 0)
    mass, step = (np.bincount(at, c).astype(np.float64) for c in (cells.weight, cells.step))
    # Where ranks are rounded away, their plain mean.
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
    """A prior: tau, order, sigma, and the variances of the terms that it has."""

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
    """Columns z, certainty, and cos(pi j rank) for j = 0, ..., 128: twice the terms, for products of any two."""
    out = np.empty((z.size, _LINE + 2 * TERMS))
    out[:, 0], out[:, 1] = z, certainty
    out[:, _LINE - 1 :] = cosines(rank, 2 * TERMS + 1)
    return out


def cosines(u: Array, count: int) -> Array:
    """Columns cos(pi j u), 0 <= u <= 1, for j = 0, 1, ...; count : > 1."""
    out = np.empty((u.size, count))
    out[:, 0] = 1.0
    out[:, 1] = first = _cosine(u)
    twice = 2.0 * first
    for j in range(2, count):
        out[:, j] = twice * out[:, j - 1] - out[:, j - 2]
    return out


def _cosine(u: Array) -> Array:
    """cos(pi u) of 0 <= u <= 1, as the sine of what is left to a right angle."""
    x = math.pi * (0.5 - u)
    square = x * x
    total = np.ones(u.size)
    for j in range(25, 2, -2):
        total = 1.0 - square / (j * (j - 1.0)) * total
    return x * total


class Posterior:
    """Posterior of the curve's terms, given cells: modes and evidence by Newton's method.

    offset, weight, positives : float64 arrays, shape (cells,): the prior's mean, and the observations
    table : see `_table`
    """

    def __init__(self, table: Array, offset: Array, weight: Array, positives: Array) -> None:
        self.table = table
        self._cells = offset, weight, positives
        self._state = np.empty((2, offset.size))
        self._trial = np.empty((2, offset.size))
        self._zero = np.empty((2, offset.size))
        self._zero_value = self._likelihood(np.zeros(1), self._zero)

    def _likelihood(self, theta: Array, into: Array) -> float:
        return float(kernel.likelihood(self.table, theta, *self._cells, into[0], into[1]))

    @np.errstate(over="ignore")  # steps are shortened until there is none
    def mode(self, variance: Array, start: Array) -> tuple[Array, float]:
        """The mode, and Laplace's log evidence, less a constant; steps are halved until they do no harm."""
        theta = start
        value = self._likelihood(theta, self._state) - 0.5 * float((theta * theta / variance).sum())
        if self._zero_value > value:
            theta, value = np.zeros(variance.size), self._zero_value
            self._state[:] = self._zero
        determinant = 0.0
        for _ in range(_ROUNDS):
            gradient, step, determinant, _ = self._step(variance, theta)
            promised = float((gradient * step).sum())
            scale = 1.0
            while True:
                tried = theta + scale * step
                new = self._likelihood(tried, self._trial) - 0.5 * float((tried * tried / variance).sum())
                if new >= value or scale < _SHORTEST:
                    break
                scale *= 0.5
            if new > value:
                theta, value = tried, new
                self._state, self._trial = self._trial, self._state
            if not promised >= _CLOSE:
                break
        return theta, value - 0.5 * float(log_of(variance).sum()) - determinant

    def factor(self, variance: Array, theta: Array) -> Array:
        """Cholesky's factor of the inverse of the posterior's covariance at a mode, by Laplace's approximation."""
        self._likelihood(theta, self._state)
        return self._step(variance, theta)[3]

    def _step(self, variance: Array, theta: Array) -> tuple[Array, Array, float, Array]:
        """Gradient, Newton's step, half the logarithm of the second derivatives' determinant, and their factor."""
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
    """A curve of log-odds by place, non-decreasing: linear between knots, constant outside.

    Attributes
    ----------
    cells : that it was fitted to
    thetas : float64 array, shape (priors, terms): the modes; 0 of what a prior does not have
    share : float64 array, shape (priors,): of each prior, by evidence
    """

    cells: Cells
    most: float
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
        """The terms at places, and cosines beyond them: see `_table`."""
        m, k = self._centres
        return _table(clipped - m, _certainties(clipped) - k, rank)

    @cached_property
    def _knots(self) -> tuple[Array, Array, Array, slice]:
        """Places of the knots, those held, their basis, and which of them are cells."""
        cells = self.cells
        low = _tail(-self.most, cells.position[0])
        high = -_tail(-self.most, -cells.position[-1])[::-1]
        position = np.concatenate([low, cells.position, high])
        inner = slice(low.size, low.size + cells.position.size)
        clipped = np.clip(position, -self.most, self.most)
        clipped[inner] = cells.clipped
        rank = np.concatenate(
            [np.full(low.size, cells.rank[0]), cells.rank, np.full(high.size, cells.rank[-1])]
        )
        return position, clipped, self.table(clipped, rank)[:, : _LINE + TERMS], inner

    @cached_property
    def knots(self) -> tuple[Array, Array]:
        """Places, strictly ascending, and the curve's log-odds there."""
        position, clipped, basis, _ = self._knots
        odds = clipped + _times(basis, _averaged(self.share, self.thetas))
        distinct = np.append(True, np.diff(position) > 0)
        return position[distinct], kernel.rising(odds, self._weights)[distinct]

    @cached_property
    def _weights(self) -> Array:
        """Weights of the knots, where they are made to rise: information."""
        position, clipped, basis, inner = self._knots
        p = expit((clipped + _times(basis, _averaged(self.share, self.thetas)))[inner])
        weight = np.full(position.size, _LIGHT)
        weight[inner] += self.cells.weight * p * (1 - p)
        return weight

    def at(self, position: Array) -> Array:
        """The curve's log-odds at places."""
        return np.interp(position, *self.knots)

    def averages(self) -> dict[str, float]:
        """Means of the priors' settings, by evidence: scales of line and bends, and the bends' order."""
        settings = np.array([prior.setting for prior in _PRIORS])
        tau, order, sigma = (float(x) for x in (self.share[:, np.newaxis] * settings).sum(axis=0))
        return {"tau": tau, "order": order, "sigma": sigma}

    def draws(self, normal: Array) -> tuple[Array, Array]:
        """Draws from the posterior: places of the knots, and log-odds there, shape (draws, knots), non-decreasing.

        normal : float64 array, shape (draws, terms): numbers drawn from the standard normal distribution
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
                curves[draw] = kernel.rising(clipped + _times(basis[:, :size], theta), self._weights)
        distinct = np.append(True, np.diff(position) > 0)
        return position[distinct], curves[:, distinct]


def _posterior(curve: Curve) -> Posterior:
    cells = curve.cells
    return Posterior(curve.table(cells.clipped, cells.rank), cells.clipped, cells.weight, cells.positives)


def fit_curve(cells: Cells, start_curve: Curve | None = None) -> Curve:
    """The curve of cells. like : a curve at whose modes the search for these begins."""
    most = _most(cells.weight) if start_curve is None else start_curve.most
    thetas = np.zeros((len(_PRIORS), _LINE + TERMS))
    curve = Curve(merge_cells(cells, COARSE), most, thetas, np.empty(0))
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
    return Curve(curve.cells, most, thetas, share)


def _tail(farthest: float, end: float) -> Array:
    """Places from the farthest one that the curve knows of to the end of the cells; none where these reach it."""
    if end <= farthest:
        return np.empty(0)
    count = math.ceil((end - farthest) / _STEP)
    return np.linspace(farthest, end, count + 1)[:-1]


def _certainties(clipped: Array) -> Array:
    """Log sigma(z) + log sigma(-z)."""
    return -(np.abs(clipped) + 2.0 * log_of(1.0 + exp_of_negative(-np.abs(clipped))))


def _averaged(share: Array, thetas: Array) -> Array:
    return np.asarray((share[:, np.newaxis] * thetas).sum(axis=0))


def _times(basis: Array, theta: Array) -> Array:
    return np.asarray((basis * theta).sum(axis=1))
