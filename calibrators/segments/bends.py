"""Bends of segments' own maps away from the adjusted map of their parent: shrunken cosines."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic.curve import cosines
from calibrators.arithmetic.log_odds import exp_of_negative, log_odds, log_of, logistic
from calibrators.arithmetic.passes import Array
from calibrators.arithmetic.processors import processors
from calibrators.segments.adjusting import LEAST, MOST, Adjusted, CellParts, Integers

TERMS = 8
SIGMAS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Candidates for the standard deviation of the first coefficient, besides 0; that of the j-th is 1 / j of it."""

STRENGTH = 3000.0
"""Information that a bent map counts for in a segment's own map."""

_TELLING = 1.0
"""Evidence that segments bend at all, least."""

_ASKED = 1024
"""Segments at most that tell which candidate it is."""

_FINEST = 64
"""Cells of a segment at most: eight of the shortest cosine's half waves."""

_PIECE = 1 << 8
_MOST_THREADS = 8
_ROUNDS, _SHORTEST, _CLOSE = 50, 1e-6, 1e-4
_LEAST_PIVOT = 1e-15
_MOST = 27.6
"""About the log-odds of 1 - 1e-12: a map that is pooled with a probability never predicts 0 or 1."""

_J = np.arange(TERMS)
_SUM, _DIFFERENCE = _J[:, np.newaxis] + _J + 2, np.abs(_J[:, np.newaxis] - _J)


class Bends(NamedTuple):
    """sigma : of the level. theta : float64 array, shape (segments with maps of their own, TERMS): coefficients."""

    sigma: float
    theta: Array


def bend(cells: CellParts, adjusted: Adjusted, own: npt.NDArray[np.bool_]) -> Bends:
    """Estimate how segments with maps of their own bend: adjusted log-odds + sum of h_j cos(pi j u).

    h_j ~ N(0, (s / j)^2); u is the share of the segment's information, w p (1 - p) by the adjusted map, below.
    Of the candidates for s the one with the most evidence, summed over segments; the likelihood is taken as the
    parabola that it is at no bend, which leaves one sweep over the cells for all candidates.

    Parameters
    ----------
    cells, adjusted : of the segments of a level, and how they move their parents' maps
    own : bool array, shape (segments,)

    Notes
    -----
    O(cells) of these segments, times 17; and the rounds of Newton's method, where they bend.
    """
    asked, chosen = np.zeros(own.size, np.bool_), np.flatnonzero(own)
    asked[chosen[:: max(1, -(-chosen.size // _ASKED))]] = True
    evidence = np.zeros(len(SIGMAS))
    for part in _pieces(cells, adjusted, asked, _Segments.evidence):
        evidence += part
    best = int(np.argmax(evidence))
    if not evidence[best] > _TELLING:
        return Bends(0.0, np.zeros((chosen.size, TERMS)))
    theta = _pieces(cells, adjusted, own, partial(_Segments.modes, sigma=SIGMAS[best]))
    return Bends(SIGMAS[best], np.concatenate(theta))


def _pieces(
    cells: CellParts, adjusted: Adjusted, own: npt.NDArray[np.bool_], find: Callable[[_Segments], Array]
) -> list[Array]:
    """Something of these segments, in pieces of neighbours, in their order."""

    def of_piece(start: int) -> list[Array]:
        stop = min(start + _PIECE, own.size)
        mine = own[start:stop]
        if not mine.any():
            return []
        part = cells.part(start, stop)
        sizes = np.diff(part.starts)
        kept = np.repeat(mine, sizes)
        shift, slope = (np.repeat(of[start:stop], sizes)[kept] for of in (adjusted.shift, adjusted.slope))
        eta = shift + slope * part.logit[kept]
        return [find(_Segments(eta, part.weight[kept], part.positives[kept], sizes[mine]))]

    with ThreadPoolExecutor(min(processors(), _MOST_THREADS)) as threads:
        return [found for piece in threads.map(of_piece, range(0, own.size, _PIECE)) for found in piece]


def _variance(sigma: float) -> Array:
    return np.asarray(np.square(sigma / (_J + 1.0)))


class _Segments:
    """Cells of several segments, one after the other: see `bend`."""

    def __init__(self, eta: Array, weight: Array, positives: Array, sizes: Integers) -> None:
        rank = _ranks(eta, weight, sizes)
        # Neighbours that no cosine tells apart are one cell, which has as many positives by the adjusted map as they.
        cell = np.repeat(np.arange(sizes.size) * _FINEST, sizes) + (rank * (_FINEST - 1e-6)).astype(np.int64)
        first = np.flatnonzero(np.diff(cell, prepend=-1))
        self._weight, expected, self._positives, ranked = (
            np.add.reduceat(column, first)
            for column in (weight, weight * logistic(eta), positives, weight * rank)
        )
        self._eta = log_odds(np.clip(expected / self._weight, LEAST, MOST))
        self._sizes = np.bincount(cell[first] // _FINEST, minlength=sizes.size)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._table = cosines(ranked / self._weight, 2 * TERMS + 1)

    def evidence(self) -> Array:
        """Evidence of each candidate beyond that of no bend, summed over the segments."""
        gradient, second = self._derivatives(np.zeros((self._sizes.size, TERMS)))
        found = np.empty(len(SIGMAS))
        for k, sigma in enumerate(SIGMAS):
            variance = _variance(sigma)
            factor = _factored(second, variance)
            gain = 0.5 * (gradient * _solved(factor, gradient)).sum()
            roots = log_of(factor[:, _J, _J].ravel()).sum()
            found[k] = gain - roots - 0.5 * self._sizes.size * log_of(variance).sum()
        return found

    def modes(self, sigma: float) -> Array:
        """The likeliest coefficients, by Newton's method; steps are halved until they do no harm."""
        variance, theta = _variance(sigma), np.zeros((self._sizes.size, TERMS))
        now = self._value(theta, variance)
        for _ in range(_ROUNDS):
            gradient, second = self._derivatives(theta)
            gradient -= theta / variance
            step = _solved(_factored(second, variance), gradient)
            promised, scale = (gradient * step).sum(axis=1), np.ones(self._sizes.size)
            while True:
                tried = theta + scale[:, np.newaxis] * step
                new = self._value(tried, variance)
                worse = ~(new >= now) & (scale > _SHORTEST)
                if not worse.any():
                    break
                scale[worse] /= 2
            better = new > now
            theta[better], now = tried[better], np.where(better, new, now)
            if not (promised > _CLOSE).any():
                break
        return theta

    def _log_odds(self, theta: Array) -> Array:
        terms = self._table[:, 1 : TERMS + 1]
        return np.asarray(self._eta + (terms * np.repeat(theta, self._sizes, axis=0)).sum(axis=1))

    def _value(self, theta: Array, variance: Array) -> Array:
        f = self._log_odds(theta)
        likelihood = self._positives * f - self._weight * (
            np.maximum(f, 0.0) + log_of(1.0 + exp_of_negative(-np.abs(f)))
        )
        found = np.add.reduceat(likelihood, self._starts) - 0.5 * (theta * theta / variance).sum(axis=1)
        return np.asarray(found)

    def _derivatives(self, theta: Array) -> tuple[Array, Array]:
        """The likelihood's gradients, shape (segments, TERMS), and minus its second derivatives."""
        p = logistic(self._log_odds(theta))
        miss = self._positives - self._weight * p
        information = self._weight * p * (1.0 - p)
        terms = self._table[:, 1 : TERMS + 1]
        gradient = np.add.reduceat(miss[:, np.newaxis] * terms, self._starts)
        sums = np.add.reduceat(information[:, np.newaxis] * self._table, self._starts)
        # A product of two cosines is half the sum of two others.
        return gradient, 0.5 * (sums[:, _SUM] + sums[:, _DIFFERENCE])


def _ranks(eta: Array, weight: Array, sizes: Integers) -> Array:
    """The share of its segment's information below each cell."""
    p = logistic(eta)
    information = np.maximum(weight * p * (1.0 - p), LEAST)
    rank, at = np.empty(eta.size), 0
    for size in sizes.tolist():
        own = slice(at, at + size)
        # Of one segment after the other, so that it does not matter which ones are taken together.
        through = np.cumsum(information[own])
        rank[own] = np.minimum((through - information[own] / 2) / through[-1], 1.0)
        at += size
    return rank


def _factored(second: Array, variance: Array) -> Array:
    """Cholesky's factors of these with the prior's variance."""
    found = second.copy()
    found[:, _J, _J] += 1.0 / variance
    # Rounding may leave nothing where weights are huge.
    least = _LEAST_PIVOT * found[:, _J, _J]
    for i in range(TERMS):
        for j in range(i + 1):
            rest = found[:, i, j] - (found[:, i, :j] * found[:, j, :j]).sum(axis=1)
            found[:, i, j] = np.sqrt(np.maximum(rest, least[:, i])) if i == j else rest / found[:, j, j]
    return found


def _solved(factor: Array, gradient: Array) -> Array:
    step = gradient.copy()
    for i in range(TERMS):
        step[:, i] = (step[:, i] - (factor[:, i, :i] * step[:, :i]).sum(axis=1)) / factor[:, i, i]
    for i in reversed(range(TERMS)):
        step[:, i] = (step[:, i] - (factor[:, i + 1 :, i] * step[:, i + 1 :]).sum(axis=1)) / factor[:, i, i]
    return step


def bent(eta: Array, weight: Array, sizes: Integers, theta: Array) -> Array:
    """Log-odds of segments' cells, bent. eta : by adjusted maps. sizes : of each segment. theta : see `Bends`."""
    terms = cosines(_ranks(eta, weight, sizes), TERMS + 1)[:, 1:]
    return np.asarray(np.clip(eta + (terms * np.repeat(theta, sizes, axis=0)).sum(axis=1), -_MOST, _MOST))
