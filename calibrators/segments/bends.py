"""Bends of segments' own maps away from the adjusted map of their parent: shrunken cosines."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic.curve import cosines
from calibrators.arithmetic.log_odds import exp_of_negative, log_of, logistic
from calibrators.arithmetic.passes import Array
from calibrators.arithmetic.processors import processors
from calibrators.segments.adjusting import Adjusted, CellParts, Integers
from calibrators.segments.curves import LEAST

TERMS = 8
SIGMAS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Candidates for the standard deviation of the first coefficient, besides 0; that of the j-th is 1 / j of it."""

_ASKED = 1024
"""Segments at most that tell which candidate it is."""

_PIECE = 1 << 8
_MOST_THREADS = 8
_ROUNDS, _SHORTEST, _CLOSE = 50, 1e-6, 1e-6
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
    Of the candidates for s the one with the most evidence, by Laplace's approximation, summed over segments.

    Parameters
    ----------
    cells, adjusted : of the segments of a level, and how they move their parents' maps
    own : bool array, shape (segments,)

    Notes
    -----
    O(cells) of these segments, times 17 and the rounds of Newton's method.
    """
    asked, chosen = np.zeros(own.size, np.bool_), np.flatnonzero(own)
    asked[chosen[:: max(1, -(-chosen.size // _ASKED))]] = True
    evidence = np.array([_modes(cells, adjusted, asked, sigma)[1].sum() for sigma in SIGMAS])
    best = int(np.argmax(evidence))
    if not evidence[best] > 0:
        return Bends(0.0, np.zeros((chosen.size, TERMS)))
    return Bends(SIGMAS[best], _modes(cells, adjusted, own, SIGMAS[best])[0])


def _modes(
    cells: CellParts, adjusted: Adjusted, own: npt.NDArray[np.bool_], sigma: float
) -> tuple[Array, Array]:
    """Find the most likely coefficients of segments, and the gain of their evidence over that of none."""

    def of_piece(start: int) -> tuple[Array, Array]:
        stop = min(start + _PIECE, own.size)
        mine = own[start:stop]
        if not mine.any():
            return np.empty((0, TERMS)), np.empty(0)
        part = cells.part(start, stop)
        sizes = np.diff(part.starts)
        eta = (
            np.repeat(adjusted.shift[start:stop], sizes)
            + np.repeat(adjusted.slope[start:stop], sizes) * part.logit
        )
        kept = np.repeat(mine, sizes)
        found = _Newton(eta[kept], part.weight[kept], part.positives[kept], sizes[mine], sigma)
        return found.theta, found.evidence

    with ThreadPoolExecutor(min(processors(), _MOST_THREADS)) as threads:
        found = list(threads.map(of_piece, range(0, own.size, _PIECE)))
    theta, evidence = (np.concatenate(column) for column in zip(*found, strict=True))
    return theta, evidence


class _Newton:
    """Newton's method for many segments at once: see `bend`. Steps are halved until they do no harm."""

    def __init__(self, eta: Array, weight: Array, positives: Array, sizes: Integers, sigma: float) -> None:
        self._eta, self._weight, self._positives, self._sizes = eta, weight, positives, sizes
        self._starts = np.cumsum(sizes) - sizes
        self._table = _table(eta, weight, sizes)
        self._variance: Array = np.square(sigma / (_J + 1.0))
        self.theta = np.zeros((sizes.size, TERMS))
        none = now = self._value(self.theta)
        for _ in range(_ROUNDS):
            gradient, factor = self._derivatives()
            step = _solved(factor, gradient)
            promised, scale = (gradient * step).sum(axis=1), np.ones(sizes.size)
            while True:
                tried = self.theta + scale[:, np.newaxis] * step
                new = self._value(tried)
                worse = ~(new >= now) & (scale > _SHORTEST)
                if not worse.any():
                    break
                scale[worse] /= 2
            better = new > now
            self.theta[better], now = tried[better], np.where(better, new, now)
            if not (promised > _CLOSE).any():
                break
        roots = log_of(factor[:, _J, _J].ravel()).reshape(-1, TERMS).sum(axis=1)
        determinant = roots + 0.5 * float(log_of(self._variance).sum())
        self.evidence = now - none - determinant

    def _log_odds(self, theta: Array) -> Array:
        terms = self._table[:, 1 : TERMS + 1]
        return np.asarray(self._eta + (terms * np.repeat(theta, self._sizes, axis=0)).sum(axis=1))

    def _value(self, theta: Array) -> Array:
        f = self._log_odds(theta)
        likelihood = self._positives * f - self._weight * (
            np.maximum(f, 0.0) + log_of(1.0 + exp_of_negative(-np.abs(f)))
        )
        found = np.add.reduceat(likelihood, self._starts) - 0.5 * (theta * theta / self._variance).sum(axis=1)
        return np.asarray(found)

    def _derivatives(self) -> tuple[Array, Array]:
        """Gradients, shape (segments, TERMS), and Cholesky's factors of minus the second derivatives."""
        p = logistic(self._log_odds(self.theta))
        miss = self._positives - self._weight * p
        information = self._weight * p * (1.0 - p)
        terms = self._table[:, 1 : TERMS + 1]
        gradient = np.add.reduceat(miss[:, np.newaxis] * terms, self._starts) - self.theta / self._variance
        sums = np.add.reduceat(information[:, np.newaxis] * self._table, self._starts)
        # A product of two cosines is half the sum of two others.
        second = 0.5 * (sums[:, _SUM] + sums[:, _DIFFERENCE])
        second[:, _J, _J] += 1.0 / self._variance
        return gradient, _factored(second)


def _table(eta: Array, weight: Array, sizes: Integers) -> Array:
    """Tabulate cos(pi j u) of cells for j = 0, ..., 2 TERMS."""
    p = logistic(eta)
    information = np.maximum(weight * p * (1.0 - p), LEAST)
    rank, at = np.empty(eta.size), 0
    for size in sizes.tolist():
        own = slice(at, at + size)
        # Of one segment after the other, so that it does not matter which ones are taken together.
        through = np.cumsum(information[own])
        rank[own] = np.minimum((through - information[own] / 2) / through[-1], 1.0)
        at += size
    return cosines(rank, 2 * TERMS + 1)


def _factored(second: Array) -> Array:
    """Cholesky's factors, in place."""
    # Rounding may leave nothing where weights are huge.
    least = _LEAST_PIVOT * second[:, _J, _J]
    for i in range(TERMS):
        for j in range(i + 1):
            rest = second[:, i, j] - (second[:, i, :j] * second[:, j, :j]).sum(axis=1)
            second[:, i, j] = np.sqrt(np.maximum(rest, least[:, i])) if i == j else rest / second[:, j, j]
    return second


def _solved(factor: Array, gradient: Array) -> Array:
    step = gradient.copy()
    for i in range(TERMS):
        step[:, i] = (step[:, i] - (factor[:, i, :i] * step[:, :i]).sum(axis=1)) / factor[:, i, i]
    for i in reversed(range(TERMS)):
        step[:, i] = (step[:, i] - (factor[:, i + 1 :, i] * step[:, i + 1 :]).sum(axis=1)) / factor[:, i, i]
    return step


def bent(eta: Array, weight: Array, sizes: Integers, theta: Array) -> Array:
    """Log-odds of segments' cells, bent. eta : by adjusted maps. sizes : of each segment. theta : see `Bends`."""
    terms = _table(eta, weight, sizes)[:, 1 : TERMS + 1]
    return np.asarray(np.clip(eta + (terms * np.repeat(theta, sizes, axis=0)).sum(axis=1), -_MOST, _MOST))
