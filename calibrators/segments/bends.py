"""Bends of segments' own maps: smooth deviations from the adjusted parent map, as sums of shrunken cosines."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np

from calibrators.core.arrays import Array, Integers, Mask
from calibrators.core.curve import cosines
from calibrators.core.log_odds import exp_of_negative, log_odds, log_of
from calibrators.segments.adjusting import Adjusted, CellParts
from calibrators.segments.cholesky import factored, solved
from calibrators.segments.curves import EXTREME, LEAST, MOST, logistic_of

TERMS = 8
SIGMAS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Candidates, besides 0, for the standard deviation of the first coefficient; that of the j-th is 1 / j of it."""

STRENGTH = 3000.0
"""Information of a bent map as prior of a segment's own map."""

_MIN_EVIDENCE = 1.0
"""Least evidence for bends."""

_MAX_SAMPLE = 1024
"""Largest number of segments from which the candidate is chosen."""

_CELLS = 64
"""Largest number of cells of a segment: eight per half wave of the shortest cosine."""

_PIECE = 1 << 8
_MOST_THREADS = 8
_ROUNDS, _SHORTEST, _CLOSE = 50, 1e-6, 1e-4
_J = np.arange(TERMS)
_SUM, _DIFFERENCE = _J[:, np.newaxis] + _J + 2, np.abs(_J[:, np.newaxis] - _J)


class Bends(NamedTuple):
    """Bends of the segments of a level that have their own maps.

    sigma : standard deviation of the first coefficient
    theta : float64 array, shape (segments with own maps, TERMS): coefficients
    """

    sigma: float
    theta: Array


def bend(
    cells: CellParts,
    adjusted: Adjusted,
    own: Mask,
    processors: int = 1,
) -> Bends:
    """Estimate the bends of segments' own maps: their log odds are the adjusted ones + sum of h_j cos(pi j u).

    h_j ~ N(0, (s / j)^2); u is the share of the segment's information, w p (1 - p) by the adjusted map, below the cell.
    s is the candidate with the most evidence, summed over segments. The likelihood is approximated by its parabola at
    h = 0, so one sweep over the cells serves all candidates.

    Parameters
    ----------
    cells : cells of the segments of a level
    adjusted : adjustments of these segments
    own : bool array, shape (segments,): whether a segment has its own map
    common : bend that all of them share
    processors : number of threads to use at most; the result does not depend on it

    Notes
    -----
    O(cells) of these segments, times 17, and the rounds of Newton's method if they bend.
    """
    sampled, indices = np.zeros(own.size, np.bool_), np.flatnonzero(own)
    sampled[indices[:: max(1, -(-indices.size // _MAX_SAMPLE))]] = True
    evidence = np.zeros(len(SIGMAS))
    for part in _pieces(cells, adjusted, sampled, _Segments.evidence, processors):
        evidence += part
    best = int(np.argmax(evidence))
    if not evidence[best] > _MIN_EVIDENCE:
        return Bends(0.0, np.zeros((indices.size, TERMS)))
    theta = _pieces(cells, adjusted, own, partial(_Segments.modes, sigma=SIGMAS[best]), processors)
    return Bends(SIGMAS[best], np.concatenate(theta))


def _pieces(
    cells: CellParts,
    adjusted: Adjusted,
    selected: Mask,
    find: Callable[[_Segments], Array],
    processors: int,
) -> list[Array]:
    """Apply `find` to pieces of neighbouring segments; return its results in order. selected : the segments to use."""

    def of_piece(start: int) -> list[Array]:
        stop = min(start + _PIECE, selected.size)
        used = selected[start:stop]
        if not used.any():
            return []
        part = cells.part(start, stop).selected(np.flatnonzero(used))
        sizes = np.diff(part.starts)
        shift, slope = (x[start:stop][used] for x in (adjusted.shift, adjusted.slope))
        eta = np.repeat(shift, sizes) + np.repeat(slope, sizes) * part.logit
        return [find(_Segments(eta, part.weight, part.positives, sizes))]

    with ThreadPoolExecutor(min(processors, _MOST_THREADS)) as threads:
        return [x for piece in threads.map(of_piece, range(0, selected.size, _PIECE)) for x in piece]


def _variance(sigma: float) -> Array:
    return np.asarray(np.square(sigma / (_J + 1.0)))


class _Segments:
    """Cells of several segments, stored one after the other: see `bend`."""

    def __init__(self, eta: Array, weight: Array, positives: Array, sizes: Integers) -> None:
        rank = _ranks(eta, weight, sizes)
        # Join neighbours that cosines cannot resolve; the joined cell has the positives expected by the adjusted map.
        cell = np.repeat(np.arange(sizes.size) * _CELLS, sizes) + (rank * (_CELLS - 1e-6)).astype(np.int64)
        first = np.flatnonzero(np.diff(cell, prepend=-1))
        self._weight, expected, self._positives, rank_sum = (
            np.add.reduceat(column, first)
            for column in (weight, weight * logistic_of(eta), positives, weight * rank)
        )
        self._eta = log_odds(np.clip(expected / self._weight, LEAST, MOST))
        self._sizes = np.bincount(cell[first] // _CELLS, minlength=sizes.size)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._table = cosines(rank_sum / self._weight, 2 * TERMS + 1)

    def evidence(self) -> Array:
        """Compute the evidence of each candidate minus the evidence of no bends, summed over the segments."""
        gradient, second = self._derivatives(np.zeros((self._sizes.size, TERMS)))
        evidence = np.empty(len(SIGMAS))
        for k, sigma in enumerate(SIGMAS):
            variance = _variance(sigma)
            factor = factored(second, variance)
            gain = 0.5 * (gradient * solved(factor, gradient)).sum()
            roots = log_of(factor[:, _J, _J].ravel()).sum()
            evidence[k] = gain - roots - 0.5 * self._sizes.size * log_of(variance).sum()
        return evidence

    def modes(self, sigma: float) -> Array:
        """Find the most likely coefficients by Newton's method with step halving."""
        variance, theta = _variance(sigma), np.zeros((self._sizes.size, TERMS))
        value = self._value(theta, variance)
        for _ in range(_ROUNDS):
            gradient, second = self._derivatives(theta)
            gradient -= theta / variance
            step = solved(factored(second, variance), gradient)
            expected, scale = (gradient * step).sum(axis=1), np.ones(self._sizes.size)
            while True:
                candidate = theta + scale[:, np.newaxis] * step
                new_value = self._value(candidate, variance)
                worse = ~(new_value >= value) & (scale > _SHORTEST)
                if not worse.any():
                    break
                scale[worse] /= 2
            better = new_value > value
            theta[better], value = candidate[better], np.where(better, new_value, value)
            if not (expected > _CLOSE).any():
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
        value = np.add.reduceat(likelihood, self._starts) - 0.5 * (theta * theta / variance).sum(axis=1)
        return np.asarray(value)

    def _derivatives(self, theta: Array) -> tuple[Array, Array]:
        """Compute the log likelihood's gradients, shape (segments, TERMS), and its negated second derivatives."""
        p = logistic_of(self._log_odds(theta))
        residual = self._positives - self._weight * p
        information = self._weight * p * (1.0 - p)
        terms = self._table[:, 1 : TERMS + 1]
        gradient = np.add.reduceat(residual[:, np.newaxis] * terms, self._starts)
        sums = np.add.reduceat(information[:, np.newaxis] * self._table, self._starts)
        # A product of two cosines is half the sum of two others.
        return gradient, 0.5 * (sums[:, _SUM] + sums[:, _DIFFERENCE])


def _ranks(eta: Array, weight: Array, sizes: Integers) -> Array:
    """Compute the share of its segment's information below the middle of each cell."""
    p = logistic_of(eta)
    information = np.maximum(weight * p * (1.0 - p), LEAST)
    rank, start = np.empty(eta.size), 0
    for size in sizes.tolist():
        cells = slice(start, start + size)
        # Each segment is summed separately, so that the result does not depend on the piece.
        cumulative = np.cumsum(information[cells])
        rank[cells] = np.minimum((cumulative - information[cells] / 2) / cumulative[-1], 1.0)
        start += size
    return rank


def bent(eta: Array, weight: Array, positives: Array, sizes: Integers, theta: Array) -> Array:
    """Bend the log odds of segments' cells, and shift them so that each segment expects the positives that it has.

    eta : float64 array, shape (cells,): adjusted log odds; weight, positives : of the cells
    sizes : number of cells of each segment, > 0; theta : see `Bends`
    """
    terms = cosines(_ranks(eta, weight, sizes), TERMS + 1)[:, 1:]
    curve = np.clip(eta + (terms * np.repeat(theta, sizes, axis=0)).sum(axis=1), -EXTREME, EXTREME)
    shift = shifts_to_totals(curve, weight, positives, sizes)
    return np.asarray(np.clip(curve + np.repeat(shift, sizes), -EXTREME, EXTREME))


def shifts_to_totals(curve: Array, weight: Array, positives: Array, sizes: Integers) -> Array:
    """Return for each segment the shift of its log odds with which it expects the positives that it has."""
    starts = np.cumsum(sizes) - sizes
    total = np.add.reduceat(weight, starts)
    # A segment of one label has no finite log odds.
    target = np.clip(np.add.reduceat(positives, starts), 0.5, np.maximum(total - 0.5, 0.5))
    shift, moving = np.zeros(sizes.size), np.full(sizes.size, True)
    for _ in range(_ROUNDS):
        p = logistic_of(curve + np.repeat(shift, sizes))
        missing = target - np.add.reduceat(weight * p, starts)
        information = np.maximum(np.add.reduceat(weight * p * (1.0 - p), starts), LEAST)
        with np.errstate(over="ignore"):  # where a curve is at 0 or 1 the step is the longest
            step = np.where(moving, np.clip(missing / information, -1.0, 1.0), 0.0)
        shift += step
        # Each segment stops for itself, so that results do not depend on the others of a task.
        moving &= np.abs(step) > _CLOSE
        if not moving.any():
            break
    return shift
