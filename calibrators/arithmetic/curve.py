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


def held_log_odds(f: Array) -> Array:
    """Log-odds held to those of probabilities in [1e-12, 1 - 1e-12]."""
    low = float(log_odds(np.array([LEAST]))[0])
    return np.asarray(np.clip(f, low, -low))


# Scores as places on a line


@dataclass(frozen=True)
class Places:
    """Scores on the axis on which the curve is a line: their log-odds; standardised margins.

    Attributes
    ----------
    margins : whether scores are margins
    centre, spread : of margins; of probabilities the shift of the log-odds, and 1
    """

    margins: bool
    centre: float
    spread: float

    def of(self, scores: Array) -> Array:
        """Scores to places, ascending where they are."""
        if not self.margins:
            return log_odds(scores) - self.centre
        # Halves, because differences may overflow.
        with np.errstate(over="ignore"):
            found = (scores / 2 - self.centre / 2) / (self.spread / 2)
        return np.clip(found, -_FARTHEST, _FARTHEST)

    def scores(self, places: Array) -> Array:
        """Places to scores."""
        if not self.margins:
            return expit(places + self.centre)
        with np.errstate(over="ignore"):
            return np.clip(self.centre + places * self.spread, -_LARGEST, _LARGEST)


def places_of(cells: FineCells, rate: float) -> Places:
    """The line for these cells; rate : see `Calibrator.sampling_rate`.

    Probabilities are those of all rows: among the rows that there are, the odds are 1 / rate times as high.
    """
    if cells.first[0] >= 0 and cells.last[-1] <= 1:
        return Places(False, math.log(rate), 1.0)
    middle = cells.first / 2 + cells.last / 2
    through = np.cumsum(cells.weight)
    through /= through[-1]

    def quantile(share: float) -> float:
        return float(middle[min(int(np.searchsorted(through, share)), middle.size - 1)])

    for tail, width in ((0.25, _QUARTILES), (0.05, 3.2897), (0.0, 4.0)):
        low, high = (cells.first[0], cells.last[-1]) if tail == 0 else (quantile(tail), quantile(1 - tail))
        spread = min((high / 2 - low / 2) / width, 8e307) * 2
        if spread > 0:
            return Places(True, quantile(0.5), float(spread))
    return Places(True, float(middle[0]), 1.0)


class Cells(NamedTuple):
    """Cells on the line; float64 arrays, shape (cells,), ascending.

    place, held : the mean places of the observations, as they are and held within what so many can verify
    weight, positives : sums
    step, rank : how much of either label lies in the cell, and below its middle: the means of the two shares
    """

    place: Array
    held: Array
    weight: Array
    positives: Array
    step: Array
    rank: Array


def cells_on(places: Places, fine: FineCells) -> Cells:
    """Fine cells on the line: each at the middle of the places of its first and last score."""
    place = places.of(fine.first)
    wide = fine.last > fine.first
    place[wide] = place[wide] / 2 + places.of(fine.last[wide]) / 2
    return _ranked(
        place, np.clip(place, -_most(fine.weight), _most(fine.weight)), fine.weight, fine.positives
    )


def with_counts(cells: Cells, weight: Array, positives: Array) -> Cells:
    """The cells that hold some of other cells' observations, where they hold any."""
    some = weight > 0
    return _ranked(cells.place[some], cells.held[some], weight[some], positives[some])


def _most(weight: Array) -> float:
    """Log-odds beyond which so many observations cannot verify any."""
    return max(1.0, math.log(max(float(weight.sum()), 1.0)))


def _ranked(place: Array, held: Array, weight: Array, positives: Array) -> Cells:
    step = np.zeros(weight.size)
    labels = 0
    for own in (positives, weight - positives):
        total = float(own.sum())
        if total > 0:
            step += own / total
            labels += 1
    step /= labels
    return Cells(place, held, weight, positives, step, np.clip(np.cumsum(step) - step / 2, 0.0, 1.0))


def pooled(cells: Cells, most: int) -> Cells:
    """Pool into at most so many cells, of nearly equal steps in rank."""
    if cells.place.size <= most:
        return cells
    at = np.minimum((cells.rank * most).astype(np.int64), most - 1)
    at = np.cumsum(np.diff(at, prepend=at[0]) > 0)
    mass, step = (np.bincount(at, c).astype(np.float64) for c in (cells.weight, cells.step))
    # Where ranks are rounded away, their plain mean.
    count = np.bincount(at)
    rank = np.where(step > 0, np.bincount(at, cells.step * cells.rank), np.bincount(at, cells.rank))
    return Cells(
        np.bincount(at, cells.weight * cells.place) / mass,
        np.bincount(at, cells.weight * cells.held) / mass,
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
    found = []
    j = np.arange(1, TERMS + 1)
    for tau in TAUS:
        line = (tau * _LINE_SPREADS) ** 2
        for order in ORDERS:
            for sigma in SIGMAS:
                if sigma == 0 and order != ORDERS[0]:
                    continue
                bends = sigma**2 / (j if order == 1 else j * j).astype(np.float64) ** 2
                variance = np.concatenate([line, bends]) if sigma else line
                found.append(_Prior((tau, order, sigma), variance))
    return found


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
    out[:, 1] = now = _cosine(u)
    twice = 2.0 * now
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
        self._tried = np.empty((2, offset.size))
        self._zero = np.empty((2, offset.size))
        self._none = self._likelihood(np.zeros(1), self._zero)

    def _likelihood(self, theta: Array, into: Array) -> float:
        return float(kernel.likelihood(self.table, theta, *self._cells, into[0], into[1]))

    @np.errstate(over="ignore")  # steps are shortened until there is none
    def mode(self, variance: Array, start: Array) -> tuple[Array, float]:
        """The mode, and Laplace's log evidence, less a constant; steps are halved until they do no harm."""
        theta = start
        now = self._likelihood(theta, self._state) - 0.5 * float((theta * theta / variance).sum())
        if self._none > now:
            theta, now = np.zeros(variance.size), self._none
            self._state[:] = self._zero
        determinant = 0.0
        for _ in range(_ROUNDS):
            gradient, step, determinant, _ = self._step(variance, theta)
            promised = float((gradient * step).sum())
            scale = 1.0
            while True:
                tried = theta + scale * step
                new = self._likelihood(tried, self._tried) - 0.5 * float((tried * tried / variance).sum())
                if new >= now or scale < _SHORTEST:
                    break
                scale *= 0.5
            if new > now:
                theta, now = tried, new
                self._state, self._tried = self._tried, self._state
            if not promised >= _CLOSE:
                break
        return theta, now - 0.5 * float(log_of(variance).sum()) - determinant

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
        p = np.clip(expit(self.cells.held), _CERTAIN, 1 - _CERTAIN)
        info = self.cells.weight * p * (1 - p)
        total = float(info.sum())
        return float((info * self.cells.held).sum()) / total, float(
            (info * _certainties(self.cells.held)).sum()
        ) / total

    def table(self, held: Array, rank: Array) -> Array:
        """The terms at places, and cosines beyond them: see `_table`."""
        m, k = self._centres
        return _table(held - m, _certainties(held) - k, rank)

    @cached_property
    def _knots(self) -> tuple[Array, Array, Array, slice]:
        """Places of the knots, those held, their basis, and which of them are cells."""
        cells = self.cells
        low = _tail(-self.most, cells.place[0])
        high = -_tail(-self.most, -cells.place[-1])[::-1]
        place = np.concatenate([low, cells.place, high])
        inner = slice(low.size, low.size + cells.place.size)
        held = np.clip(place, -self.most, self.most)
        held[inner] = cells.held
        rank = np.concatenate(
            [np.full(low.size, cells.rank[0]), cells.rank, np.full(high.size, cells.rank[-1])]
        )
        return place, held, self.table(held, rank)[:, : _LINE + TERMS], inner

    @cached_property
    def knots(self) -> tuple[Array, Array]:
        """Places, strictly ascending, and the curve's log-odds there."""
        place, held, basis, _ = self._knots
        f = held + _times(basis, _averaged(self.share, self.thetas))
        distinct = np.append(True, np.diff(place) > 0)
        return place[distinct], kernel.rising(f, self._weights)[distinct]

    @cached_property
    def _weights(self) -> Array:
        """Weights of the knots, where they are made to rise: information."""
        place, held, basis, inner = self._knots
        p = expit((held + _times(basis, _averaged(self.share, self.thetas)))[inner])
        weight = np.full(place.size, _LIGHT)
        weight[inner] += self.cells.weight * p * (1 - p)
        return weight

    def at(self, place: Array) -> Array:
        """The curve's log-odds at places."""
        return np.interp(place, *self.knots)

    def averages(self) -> dict[str, float]:
        """Means of the priors' settings, by evidence: scales of line and bends, and the bends' order."""
        settings = np.array([prior.setting for prior in _PRIORS])
        tau, order, sigma = (float(x) for x in (self.share[:, np.newaxis] * settings).sum(axis=0))
        return {"tau": tau, "order": order, "sigma": sigma}

    def draws(self, normal: Array) -> tuple[Array, Array]:
        """Draws from the posterior: places of the knots, and log-odds there, shape (draws, knots), non-decreasing.

        normal : float64 array, shape (draws, terms): numbers drawn from the standard normal distribution
        """
        place, held, basis, _ = self._knots
        posterior, count = _posterior(self), len(normal)
        of = np.searchsorted(np.cumsum(self.share), (np.arange(count) + 0.5) / count)
        of = np.minimum(of, self.share.size - 1)
        found = np.empty((count, place.size))
        for g in np.unique(of):
            own, variance = np.flatnonzero(of == g), _PRIORS[g].variance
            size = variance.size
            factor = posterior.factor(variance, self.thetas[g, :size])
            step = np.empty((size, own.size))
            for j in range(size - 1, -1, -1):
                rest = normal[own, j] - (factor[j + 1 :, j, np.newaxis] * step[j + 1 :]).sum(axis=0)
                step[j] = rest / factor[j, j]
            terms = self.thetas[g, :size, np.newaxis] + step
            for draw, theta in zip(own, terms.T, strict=True):
                found[draw] = kernel.rising(held + _times(basis[:, :size], theta), self._weights)
        distinct = np.append(True, np.diff(place) > 0)
        return place[distinct], found[:, distinct]


def _posterior(curve: Curve) -> Posterior:
    own = curve.cells
    return Posterior(curve.table(own.held, own.rank), own.held, own.weight, own.positives)


def fitted(cells: Cells, like: Curve | None = None) -> Curve:
    """The curve of cells. like : a curve at whose modes the search for these begins."""
    most = _most(cells.weight) if like is None else like.most
    thetas = np.zeros((len(_PRIORS), _LINE + TERMS))
    curve = Curve(pooled(cells, COARSE), most, thetas, np.empty(0))
    posterior = _posterior(curve)
    evidence = np.empty(len(_PRIORS))
    found = np.zeros(_LINE + TERMS)
    for g, prior in enumerate(_PRIORS):
        size = prior.variance.size
        start = (found if like is None else like.thetas[g])[:size]
        thetas[g, :size], evidence[g] = posterior.mode(prior.variance, start)
        found = thetas[g]
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


def _certainties(held: Array) -> Array:
    """Log sigma(z) + log sigma(-z)."""
    return -(np.abs(held) + 2.0 * log_of(1.0 + exp_of_negative(-np.abs(held))))


def _averaged(share: Array, thetas: Array) -> Array:
    return np.asarray((share[:, np.newaxis] * thetas).sum(axis=0))


def _times(basis: Array, theta: Array) -> Array:
    return np.asarray((basis * theta).sum(axis=1))
