"""A smooth curve of log-odds along the score: what is likely of it, by evidence, given cells of the observations.

The curve's prior mean is the score itself. Besides a shift and a stretch of its log-odds, and the term that makes it
beta calibration, cosines of the rank let it bend; how much each may do is not chosen but averaged over by evidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators._kernels import curve as kernel
from calibrators.arithmetic.fine_cells import FineCells
from calibrators.arithmetic.passes import Array

COARSE = 800
"""Cells at most that the curve is fitted to."""

TERMS = 64
TAUS = (3.0, 1.0, 0.3, 0.1, 0.03)
ORDERS = (1, 2)
SIGMAS = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
_LINE = 3
_HALF = 0.5

LOW, HIGH = 1e-300, 1.0 - 2.0**-53
LEAST = 1e-12
"""Of a probability and of what is left to 1."""

_CERTAIN = 1e-3
_LIGHT = 1e-9
_STEP = 0.25
_NEGLIGIBLE = 1e-9
_FARTHEST = 1e15
_QUARTILES = 1.3489795003921634  # of a normal distribution, from the lower to the upper one
_LARGEST = 1.7e308


def expit(argument: Array) -> Array:
    """1 / (1 + exp(-f)), the same to the last bit on every machine."""
    out = np.empty(argument.size)
    kernel.probabilities(np.ascontiguousarray(argument), out)
    return out


def log_odds(probability: Array) -> Array:
    """Log p - log(1 - p) of probabilities held in [1e-300, 1 - 2**-53]."""
    out = np.empty(probability.size)
    kernel.log_odds(np.clip(probability, LOW, HIGH), out)
    return out


# Scores as places on a line


@dataclass(frozen=True)
class Places:
    """Where scores lie on the line on which the curve is one: their log-odds; of margins the margins, standardised.

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
    """At most so many cells, of nearly equal steps in rank."""
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
    """Priors, one a row: tau, order, sigma; the variances of the terms, and how many terms there are."""

    settings: Array
    variances: Array
    sizes: npt.NDArray[np.int64]


def _priors() -> _Prior:
    settings, variances, sizes = [], [], []
    j = np.arange(1, TERMS + 1)
    for tau in TAUS:
        line = tau**2 * np.array([1.0, _HALF**2, _HALF**2])
        for order in ORDERS:
            for sigma in SIGMAS:
                if sigma == 0 and order != ORDERS[0]:
                    continue
                settings.append((tau, order, sigma))
                bends = sigma**2 / (j if order == 1 else j * j).astype(np.float64) ** 2
                variances.append(np.concatenate([line, bends if sigma else np.ones(TERMS)]))
                sizes.append(_LINE if sigma == 0 else _LINE + TERMS)
    return _Prior(np.array(settings), np.array(variances), np.array(sizes))


_PRIORS = _priors()


@dataclass(frozen=True)
class Curve:
    """A curve of log-odds by place, non-decreasing: linear between knots, constant outside.

    Attributes
    ----------
    cells : that it was fitted to
    thetas : float64 array, shape (priors, terms): the modes
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

    def _basis(self, held: Array, rank: Array) -> Array:
        m, k = self._centres
        out = np.empty((held.size, _LINE + TERMS))
        kernel.basis(held - m, _certainties(held) - k, np.ascontiguousarray(rank), out)
        return out

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
        return place, held, self._basis(held, rank), inner

    @cached_property
    def knots(self) -> tuple[Array, Array]:
        """Places, strictly ascending, and the curve's log-odds there."""
        place, held, basis, inner = self._knots
        f = held + _times(basis, _averaged(self.share, self.thetas))
        p = expit(f[inner])
        weight = np.full(f.size, _LIGHT)
        weight[inner] += self.cells.weight * p * (1 - p)
        distinct = np.append(True, np.diff(place) > 0)
        return place[distinct], kernel.rising(f, weight)[distinct]

    def at(self, place: Array) -> Array:
        """The curve's log-odds at places."""
        return np.interp(place, *self.knots)

    def averages(self) -> dict[str, float]:
        """Of the priors' settings, by evidence: how far line and bends may go from the score, and the bends' order."""
        tau, order, sigma = (float(x) for x in self.share @ _PRIORS.settings)
        return {"tau": tau, "order": order, "sigma": sigma}

    def spread(self) -> Array:
        """The posterior standard deviation of the curve's log-odds at its knots."""
        place, held, basis, _ = self._knots
        x = self._basis(self.cells.held, self.cells.rank)
        mean = held + _times(basis, _averaged(self.share, self.thetas))
        total, own = np.zeros(place.size), np.empty(place.size)
        for g in np.flatnonzero(self.share > 1e-4):
            kernel.variances_at(
                x,
                self.cells.held,
                self.cells.weight,
                _PRIORS.variances[g],
                _PRIORS.sizes[g],
                self.thetas[g],
                basis,
                own,
            )
            total += self.share[g] * (own + (held + _times(basis, self.thetas[g]) - mean) ** 2)
        distinct = np.append(True, np.diff(place) > 0)
        return np.asarray(np.sqrt(total / self.share[self.share > 1e-4].sum())[distinct])


def fitted(cells: Cells, like: Curve | None = None) -> Curve:
    """The curve of cells. like : a curve at whose modes the search for these begins."""
    most = _most(cells.weight) if like is None else like.most
    curve = Curve(pooled(cells, COARSE), most, np.empty((_PRIORS.sizes.size, _LINE + TERMS)), np.empty(0))
    own = curve.cells
    x = curve._basis(own.held, own.rank)
    evidence = np.empty(_PRIORS.sizes.size)
    starts = np.empty((0, _LINE + TERMS)) if like is None else like.thetas
    kernel.modes(
        x,
        own.held,
        own.weight,
        own.positives,
        _PRIORS.variances,
        _PRIORS.sizes,
        starts,
        curve.thetas,
        evidence,
    )
    share = np.empty(evidence.size)
    for g, excess in enumerate((evidence - evidence.max()).tolist()):
        share[g] = math.exp(max(excess, -700.0)) if excess > -700.0 else 0.0
    share /= share.sum()
    return Curve(own, most, curve.thetas, share)


def _tail(farthest: float, end: float) -> Array:
    """Places from the farthest one that the curve knows of to the end of the cells; none where these reach it."""
    if end <= farthest:
        return np.empty(0)
    count = math.ceil((end - farthest) / _STEP)
    return np.linspace(farthest, end, count + 1)[:-1]


def _certainties(held: Array) -> Array:
    out = np.empty(held.size)
    kernel.certainties(np.ascontiguousarray(held), out)
    return out


def _averaged(share: Array, thetas: Array) -> Array:
    return np.asarray((share[:, np.newaxis] * thetas).sum(axis=0))


def _times(basis: Array, theta: Array) -> Array:
    return np.asarray((basis * theta).sum(axis=1))
