"""A bend of the parent's curve that all of its segments share, and segments' curves with it.

The parent's curve is the mean of its rows. The mean of many lines bends, so where segments differ much no shift or
slope of the parent's curve gives a segment's, and all of them miss it alike.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from calibrators.core.arrays import Array, Integers, Mask
from calibrators.core.curve import cosines
from calibrators.core.log_odds import log_of
from calibrators.segments.adjusting import Adjusted, BlockCells, CellParts, selected
from calibrators.segments.cholesky import factored, solved
from calibrators.segments.curves import LEAST, MOST, logistic_of, logit_of

TERMS = 8
SIGMAS = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Candidates, besides 0, for the standard deviation of the first coefficient; that of the j-th is 1 / j of it."""

_MIN_EVIDENCE = 3.0
"""Least evidence for the bend: every large segment has a map of its own then."""

_MOST = 1024
"""Largest number of segments from which the bend is estimated: those with the most rows of the rarer label."""

_KNOTS = 256
_CELLS = 64
_LEAST_VARIANCE, _FLAT = 1e-6, 0.05
_ROUNDS, _CLOSE = 50, 1e-5


class CommonBend(NamedTuple):
    """Bend of a parent's curve: its segments' log odds are s (l + sum of h_j cos(pi j u)) and a line of l.

    l is the log odds of the parent's curve, s the segment's slope, and u the share of the information of all segments
    where the parent's curve is lower.

    Attributes
    ----------
    sigma : standard deviation of the first coefficient
    theta : float64 array, shape (TERMS,): coefficients
    logit, rank : float64 arrays, shape (knots,): u is linear between these knots
    precision : prior precisions of segments' shifts and slopes
    pivot : see `Adjusted`
    """

    sigma: float
    theta: Array
    logit: Array
    rank: Array
    precision: tuple[float, float]
    pivot: float

    def terms(self, logit: Array) -> Array:
        """Return the cosines for log odds of the parent's curve, shape (n, TERMS)."""
        return cosines(np.interp(logit, self.logit, self.rank), TERMS + 1)[:, 1:]

    def at(self, logit: Array) -> Array:
        """Return the bend for log odds of the parent's curve, shape (n,)."""
        return np.asarray((self.terms(logit) * self.theta).sum(axis=1))

    def lines(self, cells: BlockCells, shift: Array, slope: Array) -> tuple[Array, Array, Array]:
        """Bend adjusted curves of segments, and move them by the lines that fit best then.

        shift, slope : float64 arrays, shape (segments,): see `Adjusted`

        Returns
        -------
        shifts and slopes, shape (segments,), and log odds of the cells: shift + slope l, + the adjusted slope times
        the bend
        """
        owner = _owners(cells)
        bend = slope[owner] * self.at(cells.logit)
        moved, remaining = self._without_lines(cells, shift, slope, bend[:, np.newaxis])
        eta = shift[owner] + slope[owner] * cells.logit + remaining[:, 0]
        moved_shift, moved_slope = moved[:, :, 0].T
        return shift + moved_shift - moved_slope * (cells.centre + self.pivot), slope + moved_slope, eta

    def _without_lines(
        self, cells: BlockCells, shift: Array, slope: Array, columns: Array
    ) -> tuple[Array, Array]:
        """Subtract from columns, shape (cells, k), what the prior lets each segment's own line take up.

        Also return these lines, shape (segments, 2, k): values at the pivot and slopes.
        """
        owner, starts = _owners(cells), cells.starts[:-1]
        p = logistic_of(shift[owner] + slope[owner] * cells.logit)
        weight = cells.weight * p * (1.0 - p)
        x = cells.logit - (cells.centre + self.pivot)[owner]
        h_aa, h_ad, h_dd = (np.add.reduceat(weight * x**power, starts) for power in range(3))
        h_aa, h_dd = h_aa + self.precision[0], h_dd + self.precision[1]
        g_a, g_d = (np.add.reduceat((weight * f)[:, np.newaxis] * columns, starts) for f in (1.0, x))
        # Positive, as both precisions are.
        determinant = (h_aa * h_dd - h_ad * h_ad)[:, np.newaxis]
        h_aa, h_ad, h_dd = (h[:, np.newaxis] for h in (h_aa, h_ad, h_dd))
        lines = (
            -np.stack([h_dd * g_a - h_ad * g_d, h_aa * g_d - h_ad * g_a], axis=1) / determinant[:, np.newaxis]
        )
        return lines, columns + lines[owner, 0] + x[:, np.newaxis] * lines[owner, 1]

    def design(self, cells: BlockCells, shift: Array, slope: Array) -> Array:
        """Return the derivatives of the cells' log odds by the coefficients, shape (cells, TERMS)."""
        columns = slope[_owners(cells), np.newaxis] * self.terms(cells.logit)
        return self._without_lines(cells, shift, slope, columns)[1]


def bend_in_common(parts: CellParts, adjusted: Adjusted, own: Mask, labels: Array) -> CommonBend | None:
    """Estimate the bend that all segments of one parent share; None without evidence for it.

    The standard deviation of the coefficients is the candidate with the most evidence, by the likelihood's parabola at
    0; the coefficients are the most likely ones.

    Parameters
    ----------
    parts : cells of the segments
    adjusted : their adjustments
    own : bool array, shape (segments,): segments that can have their own maps
    labels : float64 array, shape (segments,): weight of the rarer label

    Notes
    -----
    O(cells) of at most 1,024 segments. Those that contradict the others are left out.
    """
    candidates = np.flatnonzero(own & ~adjusted.outlying)
    chosen = np.sort(candidates[np.argsort(-labels[candidates], kind="stable")[:_MOST]])
    if chosen.size < 2:
        return None
    cells = selected(parts, chosen)
    shift, slope = adjusted.shift[chosen], adjusted.slope[chosen]
    logit, rank = _ranks(cells, shift, slope)
    precision = tuple(1.0 / max(variance, _LEAST_VARIANCE) for variance in adjusted.variances)
    bend = CommonBend(0.0, np.zeros(TERMS), logit, rank, (precision[0], precision[1]), adjusted.pivot)
    cells = _joined(cells, bend, shift, slope)
    owner, design = _owners(cells), bend.design(cells, shift, slope)
    eta, start = shift[owner] + slope[owner] * cells.logit, np.zeros(1, np.int64)

    def derivatives(theta: Array) -> tuple[Array, Array]:
        p = logistic_of(eta + (design * theta).sum(axis=1))
        gradient = np.add.reduceat((cells.positives - cells.weight * p)[:, np.newaxis] * design, start)
        information = (cells.weight * p * (1.0 - p))[:, np.newaxis] * design
        second = [np.add.reduceat(information * design[:, j, np.newaxis], start)[0] for j in range(TERMS)]
        return gradient, np.stack(second)[np.newaxis]

    theta, j = np.zeros(TERMS), np.arange(1, TERMS + 1)
    gradient, second = derivatives(theta)
    evidence = []
    for sigma in SIGMAS:
        variance = np.square(sigma / j)
        factor = factored(second, variance)
        roots = log_of(factor[0, j - 1, j - 1]).sum() + 0.5 * log_of(variance).sum()
        evidence.append(0.5 * float((gradient * solved(factor, gradient)).sum()) - roots)
    best = int(np.argmax(evidence))
    if not evidence[best] > _MIN_EVIDENCE:
        return None
    variance = np.square(SIGMAS[best] / j)
    for _ in range(_ROUNDS):
        gradient, second = derivatives(theta)
        step = solved(factored(second, variance), gradient - theta / variance)[0]
        theta = theta + np.clip(step, -SIGMAS[best], SIGMAS[best])
        if np.abs(step).max() <= _CLOSE:
            break
    return bend._replace(sigma=SIGMAS[best], theta=theta)


def _owners(cells: BlockCells) -> Integers:
    """Return the segment of each cell."""
    return np.repeat(np.arange(cells.groups), np.diff(cells.starts))


def _ranks(cells: BlockCells, shift: Array, slope: Array) -> tuple[Array, Array]:
    """Return log odds of the parent's curve, ascending, and the shares of all information below them."""
    owner = _owners(cells)
    p = logistic_of(shift[owner] + slope[owner] * cells.logit)
    logit, index = np.unique(cells.logit, return_inverse=True)
    information = np.bincount(index, cells.weight * p * (1.0 - p))
    cumulative = np.cumsum(information)
    rank = (cumulative - information / 2) / cumulative[-1]
    # Fewer knots: the last one of each share of the information.
    last = np.flatnonzero(np.diff(np.floor(rank * _KNOTS), append=np.inf))
    return logit[last], np.minimum(rank[last], 1.0)


def _joined(cells: BlockCells, bend: CommonBend, shift: Array, slope: Array) -> BlockCells:
    """Join a segment's cells that cosines cannot resolve, to the log odds at which as many positives are expected.

    At the mean of their log odds fewer are expected, or more: among millions of rows a bend.
    """
    rank, owner = np.interp(cells.logit, bend.logit, bend.rank), _owners(cells)
    place = owner * _CELLS + np.floor(rank * (_CELLS - 1e-6)).astype(np.int64)
    first = np.flatnonzero(np.diff(place, prepend=-1))
    expected = cells.weight * logistic_of(shift[owner] + slope[owner] * cells.logit)
    weight, positives, logit, expected = (
        np.add.reduceat(column, first)
        for column in (cells.weight, cells.positives, cells.weight * cells.logit, expected)
    )
    owner, p = owner[first], np.clip(expected / weight, LEAST, MOST)
    lines = (logit_of(p, 1.0 - p) - shift[owner]) / np.maximum(slope[owner], _FLAT)
    logit = np.where(slope[owner] > _FLAT, lines, logit / weight)
    sizes = np.bincount(owner, minlength=cells.groups)
    return BlockCells(np.concatenate([[0], np.cumsum(sizes)]), cells.centre, logit, weight, positives)
